// The little that a page needs beyond htmx: copying a secret, asking before what cannot be undone, the one chart that can be
// zoomed, and the playground's stream. No page depends on it to show a figure.
"use strict";

document.addEventListener("click", (event) => {
  const copy = event.target.closest("[data-copy]");
  if (copy) navigator.clipboard?.writeText(document.querySelector(copy.dataset.copy).textContent);
});

document.addEventListener("submit", (event) => {
  const words = event.submitter?.dataset.confirm;
  if (words && !window.confirm(words)) event.preventDefault();
});

// On a narrow screen the menu begins closed.
const menu = document.querySelector(".menu");
if (menu && window.matchMedia("(max-width: 52rem)").matches) menu.open = false;

function colour(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

async function drawZoom(place) {
  const answer = await fetch(place.dataset.series);
  if (!answer.ok) return;
  const { data, labels, timezone } = await answer.json();
  if (data[0].length < 2) return;
  const language = document.documentElement.lang;
  const words = (options) => new Intl.DateTimeFormat(language, { timeZone: timezone, ...options });
  const [day, hour] = [words({ month: "short", day: "numeric" }), words({ hour: "2-digit", minute: "2-digit", hourCycle: "h23" })];
  const moment = words({ dateStyle: "medium", timeStyle: "short", hourCycle: "h23" });
  const ticks = (chart, at, axis, space, step) => at.map((each) => {
    const [date, time] = [day.format(each * 1000), hour.format(each * 1000)];
    return step >= 86400 || time === "00:00" ? date : time;
  });
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
  const chart = new uPlot({
    width: place.clientWidth,
    height: 180,
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), timezone),
    axes: [{ ...axis, values: ticks }, { ...axis, size: 56 }],
    series: [{ label: labels[0], value: (chart, at) => (at == null ? "–" : moment.format(at * 1000)) }, { label: labels[1], stroke: colour("--s0"), width: 1.5 }, { label: labels[2], stroke: colour("--bad"), width: 1.5 }],
  }, data, place);
  new ResizeObserver(() => chart.setSize({ width: place.clientWidth, height: 180 })).observe(place);
}
const zoom = document.querySelector(".zoom[data-series]");
if (zoom) drawZoom(zoom);

// Events of a stream, whatever pieces they come in.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data:") && line.slice(5).trim() !== "[DONE]") yield JSON.parse(line.slice(5));
    }
  }
}

// What the tokens so far cost at the output price: for the eye only, the exact charge comes with the last event.
function about(form, tokens) {
  const prices = JSON.parse(form.dataset.prices);
  const price = prices[form.key_id.selectedOptions[0].dataset.team]?.[form.model.value];
  if (!price || price.unit !== "mtok" || !price.output) return "";
  return `${form.dataset.estimate} ${((tokens * Number(price.output)) / 1e6).toFixed(9)} ${price.currency}`;
}

async function ask(form, stop) {
  const [out, tokens, cost] = ["answer", "tokens", "cost"].map((id) => document.getElementById(id));
  const messages = form.system.value ? [{ role: "system", content: form.system.value }] : [];
  const body = { key_id: form.key_id.value, model: form.model.value, messages: [...messages, { role: "user", content: form.question.value }] };
  if (form.temperature.value) body.temperature = Number(form.temperature.value);
  if (form.max_tokens.value) body.max_tokens = Number(form.max_tokens.value);
  out.textContent = tokens.textContent = cost.textContent = "";
  const answer = await fetch(form.dataset.url, {
    method: "POST",
    headers: { "content-type": "application/json", "x-csrf-token": form.dataset.csrf },
    body: JSON.stringify(body),
    signal: stop,
  });
  if (!answer.ok) {
    const text = await answer.text();
    throw new Error(text.startsWith("{") ? JSON.parse(text).error.message : form.dataset.failed);
  }
  let count = 0;
  for await (const event of events(answer.body)) {
    if (event.error) throw new Error(event.error.message);
    const piece = event.choices?.[0]?.delta?.content;
    if (piece) {
      out.append(piece);
      count += 1;
      cost.textContent = about(form, count);
    }
    if (event.usage) {
      tokens.textContent = `${event.usage.prompt_tokens} + ${event.usage.completion_tokens}`;
      if (event.usage.cost) cost.textContent = `${form.dataset.exact} ${event.usage.cost}`;
    }
  }
}

const playground = document.getElementById("playground");
playground?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const [send, stop] = [playground.querySelector("button.primary"), document.getElementById("stop")];
  const control = new AbortController();
  stop.onclick = () => control.abort();
  send.disabled = true;
  stop.hidden = false;
  try {
    await ask(playground, control.signal);
  } catch (error) {
    if (error.name !== "AbortError") document.getElementById("answer").append(`\n${error.message}`);
  } finally {
    send.disabled = false;
    stop.hidden = true;
  }
});

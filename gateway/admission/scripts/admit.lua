-- Admit (A[8] = 0) or amend (1). A: 3 lease, 4 tokens, 5 ttl us, 6 scopes: name, requests/min, tokens/min, parallel.. (-1: no
-- limit), 7 charges: budget, units, nano, limit units, limit nano, hard..
local LEASE, TOKENS, SCOPES, CHARGES, AMEND = A[3], A[4], A[6], A[7], A[8] == 1
local NEW_BUDGET = pack(0, 0, 0, 0, 0, 0, 0)
local SEQ, states, budgets, held

-- What is held already counts as room: field -> {units, nano}
local function held_amounts()
  local own, at = {}, 5 + 3 * held[3]
  for _ = 1, held[at - 1] do
    own[held[at]] = { held[at + 1], held[at + 2] }
    at = at + 3
  end
  return own
end

local function load()
  local names = { 'seq', 'open', LEASE }
  for at = 1, #SCOPES, 4 do names[#names + 1] = SCOPES[at] end
  for at = 1, #CHARGES, 6 do names[#names + 1] = CHARGES[at] end
  local v = call('HMGET', H, unpack(names))
  SEQ = tonumber(v[1] or -1)
  if SEQ < A[1] or SEQ < 0 then return { 'lost', 0 } end
  local healing = tonumber(v[2]) - NOW
  if healing > 0 and healing < 5 * SECOND then return { 'healing', SEQ, healing } end -- not when the clock stepped back
  if v[3] == 'x' then return { 'finished', SEQ } end
  held = v[3] and { open_pack(v[3]) }
  states, budgets = {}, {}
  local index = 3
  for at = 1, #SCOPES, 4 do
    index = index + 1
    states[#states + 1] = open_scope(SCOPES[at], v[index])
  end
  for at = 1, #CHARGES, 6 do
    index = index + 1
    budgets[#budgets + 1] = v[index] or NEW_BUDGET
  end
end

local function all_counters()
  local all = {}
  for index = 1, #states do all[index] = counters(states[index]) end
  return all
end

-- The first hard budget without room, or the budget periods that were never seeded.
local function check_budgets(own)
  local unseeded, blocked
  for index = 1, #budgets do
    local at = index * 6 - 5
    local version, bu, bn, uu, un, ru, rn = open_pack(budgets[index])
    if version == 0 then
      unseeded = unseeded or {}
      unseeded[#unseeded + 1] = CHARGES[at]
    elseif CHARGES[at + 5] == 1 and not blocked then
      local units, nano = CHARGES[at + 3] - bu - uu - ru, CHARGES[at + 4] - bn - un - rn
      if own and own[CHARGES[at]] then
        units, nano = units + own[CHARGES[at]][1], nano + own[CHARGES[at]][2]
      end
      while nano < 0 do units, nano = units - 1, nano + NANO end
      while nano >= NANO do units, nano = units + 1, nano - NANO end
      local asked, more = CHARGES[at + 1], CHARGES[at + 2] -- what is free has room beside any debt
      if (asked > 0 or more > 0) and (asked > units or (asked == units and more > nano)) then
        blocked = { 'refused', SEQ, 'budget', all_counters(), 0, 0, CHARGES[at], units, nano }
      end
    end
  end
  if unseeded then return { 'unseeded', SEQ, unseeded } end
  return blocked
end

-- The first scope and limit without room, with the longest wait of all that have none (-1: it never will have).
local function refuse_scopes(requests, tokens_of)
  local by, scope, longest = nil, 0, 0
  local function failed(name, index, wait)
    if not by then by, scope = name, index - 1 end
    if wait < 0 or longest < 0 then longest = -1 else longest = math.max(longest, wait) end
  end
  local function wait(s, tag, used, in_head, amount, limit)
    if amount > limit then return -1 end
    local names, bucket, excess = {}, s.head - BUCKETS, used + amount - limit
    for older = bucket + 1, s.head - 1 do names[#names + 1] = s.name .. tag .. older % BUCKETS end
    local counts = call('HMGET', H, unpack(names))
    counts[BUCKETS] = in_head
    while excess > 0 do
      bucket = bucket + 1
      excess = excess - tonumber(counts[bucket - s.head + BUCKETS] or 0)
    end
    return math.max(0, (bucket + BUCKETS) * SECOND - NOW)
  end
  for index = 1, #states do
    local s, at = states[index], index * 4 - 3
    local per_minute, tokens_per_minute, parallel = SCOPES[at + 1], SCOPES[at + 2], SCOPES[at + 3]
    local tokens = tokens_of(index)
    if requests > 0 and per_minute >= 0 and s.r_used >= per_minute then
      failed('requests', index, wait(s, ':r', s.r_used, s.r_head, 1, per_minute))
    end
    if tokens and tokens_per_minute >= 0 and s.t_used + tokens > tokens_per_minute then
      failed('tokens', index, wait(s, ':t', s.t_used, s.t_head, tokens, tokens_per_minute))
    end
    if requests > 0 and parallel >= 0 and s.parallel >= parallel then
      failed('parallel', index, parallel == 0 and -1 or 0)
    end
  end
  return { 'refused', SEQ, by, all_counters(), longest, scope, '', 0, 0 }
end

local function check_scopes()
  for index = 1, #states do
    local s, at = states[index], index * 4 - 3
    local requests, tokens, parallel = SCOPES[at + 1], SCOPES[at + 2], SCOPES[at + 3]
    if (requests >= 0 and s.r_used >= requests) or (tokens >= 0 and s.t_used + TOKENS > tokens)
      or (parallel >= 0 and s.parallel >= parallel) then
      return refuse_scopes(1, function() return TOKENS end)
    end
  end
end

local function check_amended()
  local function more(index)
    local added = TOKENS - held[1]
    return held[1 + 3 * index + 2] == 1 and added > 0 and added or nil
  end
  for index = 1, #states do
    local s, limit, added = states[index], SCOPES[index * 4 - 1], more(index)
    if added and limit >= 0 and s.t_used + added > limit then return refuse_scopes(0, more) end
  end
end

local function check()
  local answer = load()
  if answer then return answer end
  if not held then return check_budgets(nil) or check_scopes() end
  if AMEND then return check_budgets(held_amounts()) or check_amended() end
end

local answer = check()
if answer and answer[1] == 'refused' and expire() > 0 then answer = check() end
local out = {}
if answer then
  for _, s in ipairs(states or {}) do
    if s.moved then out[#out + 1], out[#out + 2] = s.name, close_scope(s) end
  end
  if #out > 0 then call('HSET', H, unpack(out)) end
  return pack(answer)
end
if held and not AMEND then return pack({ 'granted', SEQ, all_counters() }) end

local own = held and held_amounts() or nil
local bucket = held and held[2] or BUCKET
local lease = { TOKENS, bucket, #states }
out = { 'seq', SEQ + 1 }
for index = 1, #states do
  local s, at = states[index], index * 4 - 3
  local requests, tokens = SCOPES[at + 1] >= 0 and 1 or 0, SCOPES[at + 2] >= 0 and 1 or 0
  if held then
    requests, tokens = held[1 + 3 * index + 1], held[1 + 3 * index + 2]
    if tokens == 1 then correct(s, bucket, 0, TOKENS - held[1]) end
  else
    s.parallel = s.parallel + 1
    if requests == 1 then s.r_used, s.r_head, s.r_last = s.r_used + 1, s.r_head + 1, s.head end
    if tokens == 1 and TOKENS > 0 then s.t_used, s.t_head, s.t_last = s.t_used + TOKENS, s.t_head + TOKENS, s.head end
  end
  lease[#lease + 1], lease[#lease + 2], lease[#lease + 3] = s.name, requests, tokens
  out[#out + 1], out[#out + 2] = s.name, close_scope(s)
end
lease[#lease + 1] = #budgets
for index = 1, #budgets do
  local at = index * 6 - 5
  local field, units, nano = CHARGES[at], CHARGES[at + 1], CHARGES[at + 2]
  lease[#lease + 1], lease[#lease + 2], lease[#lease + 3] = field, units, nano
  local version, bu, bn, uu, un, ru, rn = open_pack(budgets[index])
  if own and own[field] then
    ru, rn = ru - own[field][1], rn - own[field][2]
    if rn < 0 then ru, rn = ru - 1, rn + NANO end
    own[field] = nil
  end
  ru, rn = ru + units, rn + nano
  if rn >= NANO then ru, rn = ru + 1, rn - NANO end
  out[#out + 1], out[#out + 2] = field, pack(version, bu, bn, uu, un, ru, rn)
end
for field, amount in pairs(own or {}) do
  local version, bu, bn, uu, un, ru, rn = open_pack(call('HGET', H, field))
  ru, rn = ru - amount[1], rn - amount[2]
  if rn < 0 then ru, rn = ru - 1, rn + NANO end
  out[#out + 1], out[#out + 2] = field, pack(version, bu, bn, uu, un, ru, rn)
end
out[#out + 1], out[#out + 2] = LEASE, pack(unpack(lease))
call('HSET', H, unpack(out))
if not held then call('ZADD', EXPIRY, NOW + A[5], LEASE) end
return pack({ 'granted', SEQ + 1, all_counters() })

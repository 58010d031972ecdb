-- The sliding minute of one scope; see window.py for what it promises.
local EMPTY = pack(0, 0, 0, 0, 0, 0, 0, 0)

local function slide_far(s)
  local gap, leaving = BUCKET - s.head, {}
  local first, last = s.head + 1, BUCKET
  if gap >= BUCKETS or gap < 0 then
    first, last = 0, BUCKETS - 1
  else
    call('HSET', H, s.name .. ':r' .. s.head % BUCKETS, s.r_head, s.name .. ':t' .. s.head % BUCKETS, s.t_head)
  end
  for bucket = first, last do
    leaving[#leaving + 1] = s.name .. ':r' .. bucket % BUCKETS
    leaving[#leaving + 1] = s.name .. ':t' .. bucket % BUCKETS
  end
  if #leaving == 2 * BUCKETS then
    s.r_used, s.t_used = 0, 0
  else
    local counts = call('HMGET', H, unpack(leaving))
    for index = 1, #counts, 2 do
      s.r_used = s.r_used - tonumber(counts[index] or 0)
      s.t_used = s.t_used - tonumber(counts[index + 1] or 0)
    end
  end
  call('HDEL', H, unpack(leaving))
  s.moved = true
end

-- A scope as a table, slid to now. `raw` is its field, or false.
local function open_scope(name, raw)
  local s = { name = name }
  s.parallel, s.head, s.r_used, s.r_head, s.r_last, s.t_used, s.t_head, s.t_last = open_pack(raw or EMPTY)
  local gap = BUCKET - s.head
  if gap > 0 or gap <= -BUCKETS then
    if s.r_used ~= 0 or s.t_used ~= 0 then slide_far(s) end
    s.head, s.r_head, s.t_head = BUCKET, 0, 0
  end
  return s
end

local function close_scope(s)
  return pack(s.parallel, s.head, s.r_used, s.r_head, s.r_last, s.t_used, s.t_head, s.t_last)
end

-- How long each window needs to be empty if nobody comes: {requests used, tokens used, parallel, requests reset, tokens reset}
local function counters(s)
  return {
    s.r_used,
    s.t_used,
    s.parallel,
    s.r_used == 0 and 0 or math.max(0, (s.r_last + BUCKETS) * SECOND - NOW),
    s.t_used == 0 and 0 or math.max(0, (s.t_last + BUCKETS) * SECOND - NOW),
  }
end

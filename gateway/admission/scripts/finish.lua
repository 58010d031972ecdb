-- Settle (A[4] = 1 request stays counted, A[5] tokens, A[6] postings: budget, units, nano..) or release (0, 0, {}). A: 3 lease.
-- Posts also when the lease has expired: what was spent was spent.
local LEASE, REQUESTS, TOKENS, POSTINGS = A[3], A[4], A[5], A[6]
local v = call('HMGET', H, 'seq', LEASE)
local SEQ = tonumber(v[1] or -1)
if SEQ < A[1] or SEQ < 0 then return pack({ 'lost', 0 }) end
if v[2] == 'x' then return pack({ 'ok', SEQ, false }) end
local held = v[2] and { open_pack(v[2]) } or { 0, 0, 0, 0 }

-- Each budget once: what the lease reserved there, what is posted there.
local names, changes = {}, {}
for at = 4, 1 + 3 * held[3], 3 do names[#names + 1] = held[at] end
local first_budget = #names
for at = 5 + 3 * held[3], #held, 3 do
  names[#names + 1] = held[at]
  changes[held[at]] = { held[at + 1], held[at + 2], 0, 0 }
end
for at = 1, #POSTINGS, 3 do
  local change = changes[POSTINGS[at]]
  if change then
    change[3], change[4] = POSTINGS[at + 1], POSTINGS[at + 2]
  else
    names[#names + 1] = POSTINGS[at]
    changes[POSTINGS[at]] = { 0, 0, POSTINGS[at + 1], POSTINGS[at + 2] }
  end
end

-- A settlement whose memory has expired is not posted twice while it is unshipped.
local post = #POSTINGS > 0 and call('HSETNX', KEYS[3], string.sub(LEASE, 3), pack(unpack(POSTINGS))) == 1
local out = { 'seq', SEQ + 1, LEASE, 'x' }
local fields = #names > 0 and call('HMGET', H, unpack(names)) or {}
for index = 1, first_budget do
  local at = 1 + 3 * index
  local s = open_scope(names[index], fields[index])
  s.parallel = s.parallel - 1
  correct(s, held[2], held[at + 1] == 1 and REQUESTS - 1 or 0, held[at + 2] == 1 and TOKENS - held[1] or 0)
  out[#out + 1], out[#out + 2] = s.name, close_scope(s)
end
for index = first_budget + 1, #names do
  local change = changes[names[index]]
  local version, bu, bn, uu, un, ru, rn = 0, 0, 0, 0, 0, 0, 0
  if fields[index] then version, bu, bn, uu, un, ru, rn = open_pack(fields[index]) end
  ru, rn = ru - change[1], rn - change[2]
  if rn < 0 then ru, rn = ru - 1, rn + NANO end
  if post then
    uu, un = uu + change[3], un + change[4]
    if un >= NANO then uu, un = uu + 1, un - NANO end
  end
  out[#out + 1], out[#out + 2] = names[index], pack(version, bu, bn, uu, un, ru, rn)
end
call('HSET', H, unpack(out))
call('ZADD', EXPIRY, NOW + REMEMBERED, LEASE)
return pack({ 'ok', SEQ + 1, true })

-- A: 3 bases: budget, units, nano, version, may be forgotten at us.., 4 request ids that the database has. All or nothing.
-- Such a settlement leaves the unshipped sum; where no new base contains it, it moves into the old one.
local bases, states, moved = A[3], {}, {}
for at = 1, #bases, 5 do
  local raw = call('HGET', H, bases[at])
  local b = raw and { open_pack(raw) } or { 0, 0, 0, 0, 0, 0, 0 }
  if b[1] ~= bases[at + 3] then return pack({ 'ok', SEQ, false }) end
  b[1], b[2], b[3] = b[1] + 1, bases[at + 1], bases[at + 2]
  states[bases[at]] = b
end
for _, id in ipairs(A[4]) do
  local raw = call('HGET', KEYS[3], id)
  if raw then
    local postings = { open_pack(raw) }
    for at = 1, #postings, 3 do
      local field, units, nano = postings[at], postings[at + 1], postings[at + 2]
      local b = states[field]
      if not b then
        b = moved[field] or { open_pack(call('HGET', H, field) or pack(0, 0, 0, 0, 0, 0, 0)) }
        moved[field] = b
        b[2], b[3] = b[2] + units, b[3] + nano
        if b[3] >= NANO then b[2], b[3] = b[2] + 1, b[3] - NANO end
      end
      b[4], b[5] = b[4] - units, b[5] - nano
      if b[5] < 0 then b[4], b[5] = b[4] - 1, b[5] + NANO end
    end
    call('HDEL', KEYS[3], id)
  end
end
for field, b in pairs(states) do call('HSET', H, field, pack(unpack(b))) end
for field, b in pairs(moved) do call('HSET', H, field, pack(unpack(b))) end
for at = 1, #bases, 5 do
  if bases[at + 4] > 0 then call('ZADD', KEYS[4], bases[at + 4], bases[at]) end
end
return pack({ 'ok', call('HINCRBY', H, 'seq', 1), true })

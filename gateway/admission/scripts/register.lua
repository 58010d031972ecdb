-- After a wipe: what a process holds and has settled, counted unchecked; what is known already is left alone. A settlement whose
-- lease is known is posted by its own end, or was.
-- A: 3 leases {lease, tokens, admitted at us, ttl us, scopes as for admit, charges: budget, units, nano..},
--    4 settlements {lease, postings: budget, units, nano..}
local function change_budget(field, column, units, nano)
  local raw = call('HGET', H, field)
  local b = raw and { open_pack(raw) } or { 0, 0, 0, 0, 0, 0, 0 }
  b[column], b[column + 1] = b[column] + units, b[column + 1] + nano
  if b[column + 1] >= NANO then b[column], b[column + 1] = b[column] + 1, b[column + 1] - NANO end
  call('HSET', H, field, pack(unpack(b)))
end

for _, known in ipairs(A[3]) do
  if call('HEXISTS', H, known[1]) == 0 then
    local bucket = math.min(BUCKET, (known[3] - known[3] % SECOND) / SECOND)
    local lease = { known[2], bucket, #known[5] / 4 }
    for at = 1, #known[5], 4 do
      local s = open_scope(known[5][at], call('HGET', H, known[5][at]))
      local requests, tokens = known[5][at + 1] >= 0 and 1 or 0, known[5][at + 2] >= 0 and 1 or 0
      s.parallel = s.parallel + 1
      if bucket > s.head - BUCKETS then
        correct(s, bucket, requests, tokens * known[2])
        if requests == 1 then s.r_last = math.max(s.r_last, bucket) end
        if tokens == 1 then s.t_last = math.max(s.t_last, bucket) end
      end
      call('HSET', H, s.name, close_scope(s))
      lease[#lease + 1], lease[#lease + 2], lease[#lease + 3] = s.name, requests, tokens
    end
    lease[#lease + 1] = #known[6] / 3
    for at = 1, #known[6], 3 do
      change_budget(known[6][at], 6, known[6][at + 1], known[6][at + 2])
      lease[#lease + 1], lease[#lease + 2], lease[#lease + 3] = known[6][at], known[6][at + 1], known[6][at + 2]
    end
    call('HSET', H, known[1], pack(unpack(lease)))
    call('ZADD', EXPIRY, NOW + known[4], known[1])
  end
end
for _, settled in ipairs(A[4]) do
  local lease, postings = settled[1], settled[2]
  if call('HEXISTS', H, lease) == 0 and call('HSETNX', KEYS[3], string.sub(lease, 3), pack(unpack(postings))) == 1 then
    for at = 1, #postings, 3 do change_budget(postings[at], 4, postings[at + 1], postings[at + 2]) end
    call('HSET', H, lease, 'x')
    call('ZADD', EXPIRY, NOW + REMEMBERED, lease)
  end
end
return pack({ 'ok', call('HINCRBY', H, 'seq', 1), true })

-- A: 3 process, 4 how long it counts as alive, us; KEYS[5] {metergate}:replicas. Expires what is due, also where nobody asks.
-- The sequence number moves, so that every live process soon knows one that a restored copy of the data cannot have.
local KEPT_MS = 604800000
for _ = 1, 20 do
  if expire() < 200 then break end
end
for _, field in ipairs(call('ZRANGEBYSCORE', KEYS[4], '-inf', NOW, 'LIMIT', 0, 50)) do
  call('HDEL', H, field)
  call('ZREM', KEYS[4], field)
end
call('ZADD', KEYS[5], NOW + A[4], A[3])
call('ZREMRANGEBYSCORE', KEYS[5], '-inf', NOW)
for index = 1, 4 do call('PEXPIRE', KEYS[index], KEPT_MS) end
local seq = call('HINCRBY', H, 'seq', 1)
return pack({ 'ok', seq, call('ZCARD', KEYS[5]), math.max(0, tonumber(call('HGET', H, 'open')) - NOW) })

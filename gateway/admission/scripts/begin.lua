-- Joins the present world, or begins a new one where there is none or it has fallen behind what was seen of it.
-- KEYS: 1 {metergate}:epoch, 2 the hash of the world in ARGV[1]. ARGV: 1 known epoch, 2 highest sequence number seen, 3 name of a
-- new one, 4 its healing time in us, 5 the time (-1: the server's), 6 prefix of a world's hash
local present = redis.call('GET', KEYS[1])
local seq = present and tonumber(redis.call('HGET', ARGV[6] .. present, 'seq') or -1)
if seq and seq >= 0 and not (present == ARGV[1] and seq < tonumber(ARGV[2])) then
  return { present, seq }
end
local now = tonumber(ARGV[5])
if now < 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
if present then redis.call('UNLINK', ARGV[6] .. present) end
redis.call('SET', KEYS[1], ARGV[3])
redis.call('HSET', ARGV[6] .. ARGV[3], 'seq', 1, 'open', string.format('%.0f', now + tonumber(ARGV[4])))
return { ARGV[3], 1 }

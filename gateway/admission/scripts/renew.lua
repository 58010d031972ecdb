-- A: 3 lease, ttl us.. Leases that have expired or ended are left alone.
for at = 1, #A[3], 2 do
  local raw = call('HGET', H, A[3][at])
  if raw and raw ~= 'x' then call('ZADD', EXPIRY, 'XX', 'GT', NOW + A[3][at + 1], A[3][at]) end
end
return pack({ 'ok', SEQ, true })

-- Ends the leases whose holders have not renewed them, and forgets requests that ended long ago; how many of either. What a
-- dead lease counted in the minute stays.
local function expire()
  local due = call('ZRANGEBYSCORE', EXPIRY, '-inf', NOW, 'LIMIT', 0, 200)
  for _, field in ipairs(due) do
    local raw = call('HGET', H, field)
    if raw and raw ~= 'x' then
      local lease, at = { open_pack(raw) }, 4
      for _ = 1, lease[3] do
        local p, head, ru, rh, rl, tu, th, tl = open_pack(call('HGET', H, lease[at]))
        call('HSET', H, lease[at], pack(p - 1, head, ru, rh, rl, tu, th, tl))
        at = at + 3
      end
      for _ = 1, lease[at] do
        local budget = call('HGET', H, lease[at + 1])
        if budget then
          local version, bu, bn, uu, un, ru, rn = open_pack(budget)
          ru, rn = ru - lease[at + 2], rn - lease[at + 3]
          if rn < 0 then ru, rn = ru - 1, rn + NANO end
          call('HSET', H, lease[at + 1], pack(version, bu, bn, uu, un, ru, rn))
        end
        at = at + 3
      end
    end
    call('HDEL', H, field)
    call('ZREM', EXPIRY, field)
  end
  return #due
end

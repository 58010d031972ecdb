-- A: 3 scope, 4 budget periods
expire()
local s = open_scope(A[3], call('HGET', H, A[3]))
if s.moved then call('HSET', H, s.name, close_scope(s)) end
local budgets = {}
for index, field in ipairs(A[4]) do
  local raw = call('HGET', H, field)
  budgets[index] = raw and { open_pack(raw) } or { 0, 0, 0, 0, 0, 0, 0 }
end
return pack({ 'ok', SEQ, counters(s), budgets })

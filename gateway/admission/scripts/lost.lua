-- For operations that need nothing else of the world: is it still the one the caller knows?
local SEQ = tonumber(call('HGET', H, 'seq') or -1)
if SEQ < A[1] or SEQ < 0 then return pack({ 'lost', 0 }) end

-- Shared head of every script but begin.lua. One script is one operation and one round trip, and runs alone on the server.
--
-- A redis.call costs 1.2 to 4 us however little it does, so everything lies in three keys and an operation makes four or five
-- calls. All keys of a deployment carry the hash tag "{metergate}" and share one slot: a request touches its key's counters,
-- its team's budgets and those over everything in one step.
--
--   {metergate}:epoch               text   names the present world; begin.lua
--   {metergate}:replicas            zset   process -> when its heartbeat ends
--   KEYS[1] {metergate}:<epoch>            hash
--     seq, open                     the world's sequence number; when it began to admit
--     l:<request id>                one lease: pack(tokens, bucket, scopes, {scope, requests counted, tokens counted}..,
--                                   charges, {budget, units, nano}..); "x" once it is settled or released
--     k:<scope>                     pack(parallel, head, requests used, requests in head, requests last, tokens used, tokens in
--                                   head, tokens last): the sliding minute of window.py; its older buckets are
--     k:<scope>:r0..60, :t0..60     where they are not zero
--     b:<budget>:<window>           pack(version, base, unshipped, reserved); the three amounts as two numbers each
--   KEYS[2] {metergate}:<epoch>:expiry     zset   lease -> when it, or the memory of its end, expires (us)
--   KEYS[3] {metergate}:<epoch>:unshipped  hash   request id -> pack(budget, units, nano, ..): settled, not known to be in the base
--   KEYS[4] {metergate}:<epoch>:periods    zset   budget period -> when it may be forgotten (us)
--
-- Amounts are pairs (units, nano) with 0 <= nano < 1e9 and |units| below 2^53: exact in Lua's doubles. Times are us, too.
-- ARGV[1] is one msgpack array: the highest sequence number the caller has seen, the time (-1: the server's own), and so on.
local NANO, SECOND, BUCKETS = 1000000000, 1000000, 61
local REMEMBERED = 120 * SECOND
local call, pack, open_pack = redis.call, cmsgpack.pack, cmsgpack.unpack
local A = open_pack(ARGV[1])
local H, EXPIRY = KEYS[1], KEYS[2]
local NOW = A[2]
if NOW < 0 then
  local time = call('TIME')
  NOW = time[1] * SECOND + time[2]
end
local BUCKET = (NOW - NOW % SECOND) / SECOND

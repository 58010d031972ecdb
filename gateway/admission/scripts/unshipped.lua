-- A: 3 how many settlements at most (0: only the versions are wanted), 4 budget periods whose versions are asked for as well
local found, versions = {}, {}
local complete = call('HLEN', KEYS[3]) <= A[3]
if complete then
  found = call('HGETALL', KEYS[3])
elseif A[3] > 0 then -- any of them: the same ones each time could be those that never get a row
  found = call('HRANDFIELD', KEYS[3], A[3], 'WITHVALUES')
end
local function version_of(field)
  if versions[field] then return end
  local raw = call('HGET', H, field)
  versions[field] = raw and (open_pack(raw)) or 0
end
for _, field in ipairs(A[4]) do version_of(field) end
for index = 2, #found, 2 do found[index] = { open_pack(found[index]) } end
local flat = {}
for field, version in pairs(versions) do flat[#flat + 1], flat[#flat + 2] = field, version end
return pack({ 'ok', SEQ, flat, found, complete })

-- Replace what a lease counted in a scope's minute by the actual figures, as far as its second is still in it.
local function correct(s, bucket, requests, tokens)
  if bucket == s.head then
    s.r_head, s.t_head = s.r_head + requests, s.t_head + tokens
  elseif bucket > s.head - BUCKETS then
    if requests ~= 0 then call('HINCRBY', H, s.name .. ':r' .. bucket % BUCKETS, requests) end
    if tokens ~= 0 then call('HINCRBY', H, s.name .. ':t' .. bucket % BUCKETS, tokens) end
  else
    requests, tokens = math.max(0, requests), math.max(0, tokens)
    s.r_head, s.t_head = s.r_head + requests, s.t_head + tokens
    if tokens > 0 then s.t_last = s.head end
  end
  s.r_used, s.t_used = s.r_used + requests, s.t_used + tokens
end

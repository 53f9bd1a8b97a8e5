-- limit. Answers how many were touched.
local function forget_results(limit)
  local old = call('ZRANGEBYSCORE', P .. 'ready', '-inf', NOW - KEPT, 'LIMIT', 0, limit)
  for _, n in ipairs(old) do
    call('DEL', P .. 'r:' .. n)
    call('ZREM', P .. 'ready', n)
  end
  call('ZREMRANGEBYSCORE', P .. 'held', '-inf', NOW - KEPT)
  return #old
end

local limit = tonumber(ARGV[FIRST])
return tidy(limit) + forget_results(limit)

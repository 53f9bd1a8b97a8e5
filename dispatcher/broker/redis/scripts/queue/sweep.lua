-- Processes what is due, and forgets results whose time is over. Argument: limit. Answers how many were changed.
local function forget_results(limit)
  local old = call('ZRANGEBYSCORE', P .. 'ready', '-inf', NOW - KEPT, 'LIMIT', 0, limit)
  for _, n in ipairs(old) do -- their keys expire by themselves, their members of the sorted sets do not
    call('DEL', P .. 'r:' .. n)
    call('ZREM', P .. 'ready', n)
  end
  call('ZREMRANGEBYSCORE', P .. 'held', '-inf', NOW - KEPT)
  return #old
end

local limit = tonumber(ARGV[FIRST])
return process_due(limit) + forget_results(limit)

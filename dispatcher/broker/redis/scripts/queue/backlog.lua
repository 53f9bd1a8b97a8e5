-- Shows who waits, by turn. Argument: how many lines. A tenant has one for each tier in which it waits.
-- Answers { { tenant, waiting, the earliest deadline } ... }.
local limit, lines = tonumber(ARGV[FIRST]), {}
for _, tier in ipairs(call('ZRANGE', P .. 'tiers', 0, -1)) do
  if #lines >= limit then
    break
  end
  for _, tenant in ipairs(call('ZRANGE', P .. 'o:' .. tier, 0, limit - #lines - 1)) do
    local line = P .. 'l:' .. tier .. ':' .. tenant
    lines[#lines + 1] = { tenant, call('ZCARD', line), call('ZRANGE', line, 0, 0, 'WITHSCORES')[2] or '0' }
  end
end
return lines

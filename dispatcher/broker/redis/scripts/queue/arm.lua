-- events that were seen. Answers the events there are, and in how many ms a retry is due or a lease ends; -1: never.
local events = call('GET', P .. 'events') or '0'
local soonest = -1
for name, earliest in pairs({ delayed = NOW, leases = math.max(NOW, grace()) }) do
  local first = call('ZRANGE', P .. name, 0, 0, 'WITHSCORES')
  if first[2] then
    local rest = math.max(earliest, tonumber(first[2])) - NOW
    soonest = soonest < 0 and rest or math.min(soonest, rest)
  end
end
if events == ARGV[FIRST] then
  call('SET', P .. 'armed', 1)
end
return { events, soonest }

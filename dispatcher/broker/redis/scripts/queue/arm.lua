-- Announces that somebody waits for the next event, unless there was one since. Argument: the number of events seen.
-- Answers the number of events, and in how many ms a retry is due or a lease ends; -1: never.
-- Comparing and marking are one atomic step: an event comes either before it, and the numbers differ, or after it, and is
-- published. A lost message costs no more than the caller's timeout.
local events = call('GET', P .. 'events') or '0'
local soonest = -1
local patient_until = math.max(NOW, grace())
if patient_until > NOW then
  call('HSET', P .. 'pulse', 'at', patient_until) -- who waits for that end asks nothing until then, which is no silence
end
for name, earliest in pairs({ delayed = NOW, leases = patient_until }) do
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

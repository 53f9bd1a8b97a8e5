-- Fences. Answers 1 or 0 for each.
local answers = {}
for i = FIRST, #ARGV do
  local e, ours = held(ARGV[i])
  if ours then
    call('ZADD', P .. 'leases', NOW + LEASE, e.n)
  end
  answers[#answers + 1] = ours and 1 or 0
end
return answers

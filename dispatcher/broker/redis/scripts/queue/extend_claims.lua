-- Extends claims by a lease. Arguments: fences. Answers for each 1, or 0 if the claim is lost or was cancelled.
local answers = {}
for i = FIRST, #ARGV do
  local e, ours = claimed_by(ARGV[i])
  if ours then
    call('ZADD', P .. 'leases', NOW + LEASE, e.n)
  end
  answers[#answers + 1] = ours and 1 or 0
end
return answers

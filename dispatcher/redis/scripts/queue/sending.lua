-- Fences. Answers 1 or 0 for each; what is past its deadline or was cancelled is answered here and not sent.
local answers = {}
for i = FIRST, #ARGV do
  local e, ours = held(ARGV[i])
  if ours and e.deadline <= NOW then
    fail(e, 'expired', 'DEADLINE_EXCEEDED', EXPIRED)
    ours = false
  elseif ours and marked(e) then
    revoke(e)
    ours = false
  elseif ours then
    call('HINCRBY', P .. 'e:' .. e.n, 'attempt', 1)
  end
  answers[#answers + 1] = ours and 1 or 0
end
return answers

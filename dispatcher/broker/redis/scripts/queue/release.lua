-- 1 or 0: whether they were sent, then fences. Answers how many were ours; said again, the same again.
local unsent = ARGV[FIRST] == '0'
local ours_all = 0
for i = FIRST + 1, #ARGV do
  local e, ours = held(ARGV[i])
  if ours then
    local key = P .. 'e:' .. e.n
    call('ZREM', P .. 'leases', e.n)
    call('HINCRBY', key, 'delivery', -1)
    if unsent then
      call('HINCRBY', key, 'attempt', -1)
    end
    let_in(e, tonumber(call('HGET', key, 'charge')))
  else
    ours = released(e, ARGV[i])
  end
  ours_all = ours_all + (ours and 1 or 0)
end
return ours_all

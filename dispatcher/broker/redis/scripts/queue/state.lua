-- Reads the state of a request. Arguments: id, token ('' for the newest). Answers the state, and the fields of its result.
process_due(MANY)
local n, done = find(ARGV[FIRST], ARGV[FIRST + 1])
if not n then
  return { 'unknown' }
elseif not done then
  return { STATES[call('HGET', P .. 'e:' .. n, 'state')] }
end
return { 'done', call('HMGET', P .. 'r:' .. n, 'id', 'token', 'status', 'body', 'code', 'message', 'attempts', 'finished') }

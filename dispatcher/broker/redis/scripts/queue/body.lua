-- Reads the body of a claim. Argument: its fence. Answers { body }; {} if the body is lost; 0 if the claim is not its
-- owner's any more: a number may stand for another request since Redis came back without its data.
local e, ours = claimed_by(ARGV[FIRST])
return ours and { call('GET', P .. 'b:' .. e.n) or nil } or 0

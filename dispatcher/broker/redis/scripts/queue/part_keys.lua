-- Every script of a queue begins with the three parts. KEYS[1]: the queue's prefix, which holds the hash tag; every
-- other key is that prefix and a word, so that one script touches one slot. Times: the broker's, in milliseconds.
--   e:N   a request without a result (hash)          b:N   its body           r:N   its result (hash)
--   f:N   the claim that finished it, for a while    i:ID  its numbers by token (sorted set)
--   k:KEY what an idempotency key stands for (hash)
--   waiting: pending and delayed by deadline    delayed: by due time    leases: claimed by the end of the lease
--   tiers, o:TIER, s:TIER, l:TIER:TENANT, now: see part_order.lua
--   ready: results by the time of finishing     held: results leased to consumers, by the end of the lease
--   counts, dead, last, events, armed, go
--   pulse: when the queue was last looked after, and until when no lapsed claim is taken back
local P, call = KEYS[1], redis.call
local clock = call('TIME')
local NOW = clock[1] * 1000 + math.floor(clock[2] / 1000)
local LEASE, LAPSES, KEPT = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local WEIGHTS, FIRST = ARGV[4], 5 -- the first argument of the script's own
local MANY = 100 -- how many one pass over what is due may touch
local SILENCE, GRACE = 3000, 3000 -- who looks after a queue does it once a second
local stirred = false

local function number_of(fence)
  return string.match(fence, '^%x+') or ''
end

-- Something may be claimable. Only who waits is told, and only once.
local function stir()
  if not stirred then
    stirred = true
    local event = call('INCR', P .. 'events')
    if call('DEL', P .. 'armed') == 1 then
      call('PUBLISH', P .. 'stirred', event)
    end
  end
end

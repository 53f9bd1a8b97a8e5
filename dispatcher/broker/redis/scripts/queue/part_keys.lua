-- The keys and the clock of a queue. Every script begins with this part (dispatcher/broker/redis/scripting.py).
-- KEYS[1]: the queue's prefix with its hash tag. Every other key is that prefix and a word, so that all lie in one slot
-- of a cluster (https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#hash-tags). N is the number of a
-- submission, counted up and written as 12 hexadecimal digits, so that ties in a sorted set are ordered by arrival.
-- Times are the server's, in milliseconds.
--   e:N   a request without a result (hash)            b:N   its body           r:N   its result (hash)
--   f:N   the fence that finished it, for a while      i:ID  the numbers of one id by token (sorted set)
--   k:KEY what an idempotency key stands for (hash)
--   waiting: pending and delayed, by deadline          delayed: by the time of the retry
--   leases: claimed, by the end of the lease           tiers, o:TIER, s:TIER, l:TIER:TENANT, now: see part_order.lua
--   ready: results, by the time of finishing           held: results leased to consumers, by the end of the lease
--   counts: the counters of Totals                     dead: dead letters, the newest first
--   last: the last number                              go: token and id of requests from an intake, by number
--   events: counts what may make something claimable   armed: somebody waits for the next event
--   load: requests without a result and bytes of their bodies: n and b of all, n:TENANT and b:TENANT
--   pulse: when the queue was last processed, and until when lapsed claims are left alone
local P, call = KEYS[1], redis.call
-- TIME before a write is allowed since Redis 5, which replicates the writes of a script, not its text
-- (https://redis.io/docs/latest/develop/programmability/eval-intro/#script-replication).
local clock = call('TIME')
local NOW = clock[1] * 1000 + math.floor(clock[2] / 1000)
local LEASE, MAX_LAPSES, KEPT = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local WEIGHTS, FIRST = ARGV[4], 9 -- ARGV 5 to 8: the limits; FIRST: the index of the script's own first argument
local MANY = 100 -- how many due requests one call processes; Redis serves nobody else meanwhile
local SILENCE, GRACE = 3000, 3000 -- ms; a dispatcher processes its queue once a second
local woken = false

local function number_of(fence)
  return string.match(fence, '^%x+') or ''
end

-- Something may be claimable. Counts an event, and publishes it if somebody waits: at most once in a script, and not at
-- all while all dispatchers are busy. Publishing for every submission would cost more than the submission.
local function wake()
  if not woken then
    woken = true
    local event = call('INCR', P .. 'events')
    if call('DEL', P .. 'armed') == 1 then
      call('PUBLISH', P .. 'stirred', event)
    end
  end
end

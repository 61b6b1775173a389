-- The first layout: executions with the columns their hot indexes need, every other record by key, index entries, the event log.

-- What the schema is, and which versions of the program can use it.
CREATE TABLE {schema}.deployment (
  name  text NOT NULL PRIMARY KEY,
  value bigint NOT NULL
);

-- Tells this schema from others of the same name.
INSERT INTO {schema}.deployment (name, value) VALUES ('identity', (pg_catalog.random() * 9007199254740991)::bigint);

-- Executions. `version` changes with every write. `body` is the record of state and ownership. The columns from `state` to `kind` repeat
-- what the indexes below sort by, and are NULL where the record does not stand in the index: `state` is a letter, a capital one for what is
-- over, and `queue` a digest of namespace, lane and class. The columns after `body` are records that hardly any execution is without, as
-- long as they are small; an empty one is found in the table of records, a NULL one does not exist.
--
-- Columns of fixed width come first, in an order that leaves no gaps between them.
--
-- A third of each page stays free, so that a new version of a row finds a place beside the old one. Dead versions of rows that change
-- many times a second must go soon: cleaning starts at a small share of the table and does not pause. Texts are compared byte by byte,
-- so that no update of the operating system's languages can change the order of an index.
CREATE TABLE {schema}.execution (
  version          bigint NOT NULL,
  uuid             uuid NOT NULL,
  partition        integer NOT NULL,
  state            "char",
  created_at       bigint,
  rank             bigint,
  lease_expires_at bigint,
  completed_at     bigint,
  sweep_from       bigint,
  queue            uuid,
  lane             text COLLATE "C",
  kind             text COLLATE "C",
  body             bytea NOT NULL,
  definition       bytea,
  first_attempt    bytea,
  first_stream     bytea,
  claim_grant      bytea,
  payload          bytea,
  outcome          bytea,
  tags             bytea,
  PRIMARY KEY (partition, uuid)
) WITH (
  fillfactor = 70,
  autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0
);

-- Within the same moment entries stand in order of partition and uuid. Lists that show the newest first are read backwards, so that
-- new entries go to the end. Executions that are worked on are no more than there are leases, and come and go: lists of them are found
-- among those. The conditions must be found in the statements as they stand here, or their lists are not read from these indexes.
--
-- Each entry ends with an id, so that looking for equal ones whenever a page is full would be in vain.
CREATE INDEX execution_eligible ON {schema}.execution (queue, rank, partition, uuid) WITH (deduplicate_items = off)
  WHERE queue IS NOT NULL;
CREATE INDEX execution_eligible_in ON {schema}.execution (partition, lane, rank, uuid) WITH (deduplicate_items = off)
  WHERE queue IS NOT NULL;
CREATE INDEX execution_lane_state ON {schema}.execution (lane, state, created_at, partition DESC, uuid DESC)
  WITH (deduplicate_items = off) WHERE lane IS NOT NULL AND (lease_expires_at IS NULL OR state <> 'a');
CREATE INDEX execution_kind_state ON {schema}.execution (kind, state, created_at, partition DESC, uuid DESC)
  WITH (deduplicate_items = off) WHERE kind IS NOT NULL AND (lease_expires_at IS NULL OR state <> 'a');
CREATE INDEX execution_lease_expiry ON {schema}.execution (lease_expires_at, partition, uuid) WITH (deduplicate_items = off)
  WHERE lease_expires_at IS NOT NULL;
CREATE INDEX execution_terminal_in ON {schema}.execution (partition, lane, completed_at, uuid) WITH (deduplicate_items = off)
  WHERE completed_at IS NOT NULL;
CREATE INDEX execution_terminal ON {schema}.execution (sweep_from, partition, uuid) WITH (deduplicate_items = off)
  WHERE sweep_from IS NOT NULL;

-- When executions were created. Apart from them because this never changes while they do: each new version of a row is entered into
-- all indexes of its table again. Lists across namespaces are merged from those of each.
CREATE TABLE {schema}.created (
  created_at bigint NOT NULL,
  partition  integer NOT NULL,
  uuid       uuid NOT NULL,
  namespace  text COLLATE "C" NOT NULL
) WITH (
  autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0
);

CREATE UNIQUE INDEX created_order ON {schema}.created (namespace, created_at, partition DESC, uuid DESC)
  WITH (deduplicate_items = off);

-- Every other record. A key that is too long for an index is stood for by its beginning and a digest, and kept whole beside.
CREATE TABLE {schema}.record (
  key      bytea NOT NULL PRIMARY KEY,
  version  bigint NOT NULL,
  body     bytea NOT NULL,
  long_key bytea
) WITH (
  fillfactor = 80,
  autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0
);

-- Where records stand in all other indexes.
CREATE TABLE {schema}.entry (
  list  bytea NOT NULL,
  major bigint NOT NULL,
  tie   bytea NOT NULL,
  key   bytea NOT NULL,
  PRIMARY KEY (list, major, tie)
) WITH (
  autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0
);

-- What happened: the events of one commit together, as many as fit into a row. Numbers are given out while transactions run, so that
-- they become visible out of order: see `event_horizon`.
CREATE TABLE {schema}.event (
  sequence bigint NOT NULL PRIMARY KEY,
  at       bigint NOT NULL,
  count    integer NOT NULL,
  bodies   bytea NOT NULL
) WITH (
  toast_tuple_target = 4080,
  autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0
);

-- To compress them takes more of the server's time than to write them.
ALTER TABLE {schema}.event ALTER COLUMN bodies SET STORAGE EXTERNAL;

-- The newest executions of a process that is alone on the schema: what became of them, a line per commit. They come to their table later, many
-- at a time; until then they are nowhere else. Executions born up to `journal_settled` in `deployment` are in their table, whatever the lines say
-- of them. Lines are numbered by the owner, and read in that order by whoever takes over.
-- A line that is too long for a row goes on in the next one. Nothing is compressed: it is hardly ever read, and soon gone.
CREATE TABLE {schema}.journal (
  number bigint NOT NULL,
  part   bigint NOT NULL,
  bytes  bytea NOT NULL,
  PRIMARY KEY (number, part)
) WITH (
  toast_tuple_target = 8160,
  autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0
);

ALTER TABLE {schema}.journal ALTER COLUMN bytes SET STORAGE EXTERNAL;

INSERT INTO {schema}.deployment (name, value) VALUES ('journal_settled', 0);

-- The process that owns the journal; 0 stands for none. When the server crashes, or a replica takes its place, this is empty: then nobody's
-- memory may be ahead of the tables, and everybody has to find out anew. Up to `quiet_until`, in milliseconds since 1970, a former owner may
-- still answer from its memory, so nobody else answers anything.
CREATE UNLOGGED TABLE {schema}.reign (
  owner       bigint NOT NULL,
  quiet_until bigint NOT NULL
);

INSERT INTO {schema}.reign (owner, quiet_until) VALUES (0, 0);

-- Processes that read the tables and must find everything there: while one of them is here, up to its time in milliseconds since 1970, nobody
-- owns the journal.
CREATE TABLE {schema}.guest (
  id        bigint NOT NULL PRIMARY KEY,
  until     bigint NOT NULL
);

-- One number at a time: a session that kept some in store would use them after larger ones were seen.
CREATE SEQUENCE {schema}.event_sequence AS bigint CACHE 1;

-- Takes `places` one after the other, in the given order, `shared` or not. Callers give them in an order that all of them keep, or do not
-- wait for those that somebody else holds: that counts as a change. The schema has a space of lock numbers of its own.
CREATE FUNCTION {schema}.take(places integer[], shared boolean[], waits boolean) RETURNS void LANGUAGE plpgsql VOLATILE AS $take$
DECLARE
  space constant integer := '{schema}'::pg_catalog.regnamespace::pg_catalog.oid::integer;
  taken boolean;
BEGIN
  -- An assignment is evaluated without a query around it.
  FOR at IN 1 .. pg_catalog.cardinality(places) LOOP
    IF waits AND shared[at] THEN
      taken := pg_catalog.pg_advisory_xact_lock_shared(space, places[at]) IS NOT NULL;
    ELSIF waits THEN
      taken := pg_catalog.pg_advisory_xact_lock(space, places[at]) IS NOT NULL;
    ELSIF shared[at] THEN
      taken := pg_catalog.pg_try_advisory_xact_lock_shared(space, places[at]);
    ELSE
      taken := pg_catalog.pg_try_advisory_xact_lock(space, places[at]);
    END IF;
    IF NOT taken THEN
      RAISE EXCEPTION 'stale' USING ERRCODE = 'FF001';
    END IF;
  END LOOP;
END
$take$;

-- A row that a decision depends on; version 0 stands for one that must not exist.
CREATE TYPE {schema}.execution_seen AS (partition integer, uuid uuid, version bigint);
CREATE TYPE {schema}.record_seen AS (key bytea, version bigint);

-- A row of an execution to be written. A namespace says that a new one enters the order of creation.
CREATE TYPE {schema}.execution_write AS (
  partition        integer,
  uuid             uuid,
  old_version      bigint,
  namespace        text,
  lane             text,
  kind             text,
  state            "char",
  queue            uuid,
  rank             bigint,
  created_at       bigint,
  lease_expires_at bigint,
  completed_at     bigint,
  sweep_from       bigint,
  body             bytea,
  definition       bytea,
  first_attempt    bytea,
  first_stream     bytea,
  claim_grant      bytea,
  payload          bytea,
  outcome          bytea,
  tags             bytea
);
CREATE TYPE {schema}.record_write AS (key bytea, body bytea, long_key bytea);
CREATE TYPE {schema}.event_write AS (at bigint, count integer, bodies bytea);

-- The writes of a commit, or most of them: takes its locks, checks that nothing it read has changed, writes, and tells the time in
-- milliseconds since 1970 by the clock of the server. Raises FF001 when something has changed, and FF002 when the journal belongs to another
-- process than `owner`. Runs at READ COMMITTED, where each statement
-- sees what is committed when it begins; so the checks see what the owners of the locks left. Rows of executions that are `changed` have the
-- old version that they name, those that are `added` must not exist.
CREATE FUNCTION {schema}.commit(
  places      integer[],
  shared      boolean[],
  waits       boolean,
  executions  {schema}.execution_seen[],
  records     {schema}.record_seen[],
  new_version bigint,
  changed     {schema}.execution_write[],
  added       {schema}.execution_write[],
  puts        {schema}.record_write[],
  events      {schema}.event_write[],
  owner       bigint,
  number      bigint,
  line        bytea[]
) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $commit$
DECLARE
  space     constant integer := '{schema}'::pg_catalog.regnamespace::pg_catalog.oid::integer;
  execution {schema}.execution_seen;
  actual    bigint;
  reached   bigint;
  written   integer;
  taken     boolean;
BEGIN
  taken := {schema}.take(places, shared, waits) IS NOT NULL;

  -- The first of the places is that of the journal: nobody takes it over before this has ended.
  IF pg_catalog.cardinality(line) > 0 THEN
    INSERT INTO {schema}.journal (number, part, bytes)
    SELECT commit.number, told.part, told.bytes
    FROM {schema}.reign, pg_catalog.unnest(line) WITH ORDINALITY AS told (bytes, part)
    WHERE reign.owner = commit.owner;
  ELSE
    PERFORM FROM {schema}.reign WHERE reign.owner = commit.owner;
  END IF;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'dispossessed' USING ERRCODE = 'FF002';
  END IF;

  -- Executions are few and often none, records are often several: a statement costs more than a lookup.
  FOREACH execution IN ARRAY executions LOOP
    SELECT stored.version INTO actual FROM {schema}.execution AS stored
    WHERE stored.partition = execution.partition AND stored.uuid = execution.uuid;
    IF COALESCE(actual, 0) IS DISTINCT FROM execution.version THEN
      RAISE EXCEPTION 'stale' USING ERRCODE = 'FF001';
    END IF;
  END LOOP;
  IF pg_catalog.cardinality(records) > 0 THEN
    PERFORM FROM pg_catalog.unnest(records) AS seen LEFT JOIN {schema}.record AS stored ON stored.key = seen.key
    WHERE COALESCE(stored.version, 0) <> seen.version;
    IF FOUND THEN
      RAISE EXCEPTION 'stale' USING ERRCODE = 'FF001';
    END IF;
  END IF;

  IF pg_catalog.cardinality(changed) > 0 THEN
    UPDATE {schema}.execution AS e SET version = new_version, lane = w.lane, kind = w.kind, state = w.state, queue = w.queue,
      rank = w.rank, created_at = w.created_at, lease_expires_at = w.lease_expires_at, completed_at = w.completed_at,
      sweep_from = w.sweep_from, body = w.body, definition = w.definition, first_attempt = w.first_attempt,
      first_stream = w.first_stream, claim_grant = w.claim_grant, payload = w.payload, outcome = w.outcome, tags = w.tags
    FROM pg_catalog.unnest(changed) AS w
    WHERE e.partition = w.partition AND e.uuid = w.uuid AND e.version = w.old_version;
    GET DIAGNOSTICS written = ROW_COUNT;
    IF written <> pg_catalog.cardinality(changed) THEN
      RAISE EXCEPTION 'stale' USING ERRCODE = 'FF001';
    END IF;
  END IF;

  IF pg_catalog.cardinality(added) > 0 THEN
    INSERT INTO {schema}.execution (partition, uuid, version, lane, kind, state, queue, rank, created_at, lease_expires_at, completed_at,
      sweep_from, body, definition, first_attempt, first_stream, claim_grant, payload, outcome, tags)
    SELECT w.partition, w.uuid, new_version, w.lane, w.kind, w.state, w.queue, w.rank, w.created_at, w.lease_expires_at, w.completed_at,
      w.sweep_from, w.body, w.definition, w.first_attempt, w.first_stream, w.claim_grant, w.payload, w.outcome, w.tags
    FROM pg_catalog.unnest(added) AS w;
    INSERT INTO {schema}.created (created_at, partition, uuid, namespace)
    SELECT w.created_at, w.partition, w.uuid, w.namespace FROM pg_catalog.unnest(added) AS w WHERE w.namespace IS NOT NULL;
  END IF;

  IF pg_catalog.cardinality(puts) > 0 THEN
    INSERT INTO {schema}.record (key, version, body, long_key)
    SELECT w.key, new_version, w.body, w.long_key FROM pg_catalog.unnest(puts) AS w
    ON CONFLICT (key) DO UPDATE SET version = excluded.version, body = excluded.body;
  END IF;

  -- Who reads the log looks for these locks to stay behind the transactions that still write it. The number says that all events of this
  -- transaction come after it. It is in place before the first of them gets its own, and goes away after the commit is visible.
  IF pg_catalog.cardinality(events) > 0 THEN
    reached := COALESCE(pg_catalog.pg_sequence_last_value('{schema}.event_sequence'), 0);
    taken := pg_catalog.pg_advisory_xact_lock_shared(~space, (reached & 2147483647)::integer) IS NOT NULL;
    INSERT INTO {schema}.event (sequence, at, count, bodies)
    SELECT pg_catalog.nextval('{schema}.event_sequence'), w.at, w.count, w.bodies FROM pg_catalog.unnest(events) AS w;
  END IF;

  RETURN pg_catalog.floor(EXTRACT(epoch FROM pg_catalog.clock_timestamp()) * 1000)::bigint;
END
$commit$;

-- The number up to which the event log is complete: no event up to it can still be committed.
--
-- The order of the two steps is what makes that safe. First the last number that was given out; only then the locks of those who write. A
-- writer whose lock is there holds the answer below its own events. One whose lock is not there yet gets its numbers after it, and so
-- after the first step: they are larger. One whose lock is gone has committed visibly, or never will.
--
-- Each step needs a statement of its own, and so does reading the events: its snapshot must be taken after this function has answered.
-- In one statement (`WHERE sequence <= event_horizon()`) it would be taken before, and an event between the two would be lost.
-- A reader goes on after the last event it got, not after this number: one that no commit used may be given out again after a crash.
CREATE FUNCTION {schema}.event_horizon() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $event_horizon$
DECLARE
  space   constant integer := '{schema}'::pg_catalog.regnamespace::pg_catalog.oid::integer;
  half    constant bigint := 1073741824;
  given   bigint;
  writing bigint;
BEGIN
  SELECT CASE WHEN numbers.is_called THEN numbers.last_value ELSE 0 END INTO given FROM {schema}.event_sequence AS numbers;

  -- A lock carries the low 31 bits of its number, which is near the last one: how far it is ahead, from half a round behind to half a
  -- round before, says which number it is.
  SELECT min(given + ((held.objid::bigint - given + half) & 2147483647) - half) INTO writing
  FROM pg_catalog.pg_locks AS held
  WHERE held.locktype = 'advisory'
    AND held.database = (SELECT here.oid FROM pg_catalog.pg_database AS here WHERE here.datname = pg_catalog.current_database())
    AND held.classid = (~space)::pg_catalog.oid
    AND held.objsubid = 2
    AND held.granted;

  RETURN LEAST(given, writing);
END
$event_horizon$;

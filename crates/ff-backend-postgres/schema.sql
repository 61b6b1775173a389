-- Layout 1 of the Postgres store, generated from the migrations; do not edit.

CREATE TABLE flowfabric.created (
  created_at bigint NOT NULL,
  partition integer NOT NULL,
  uuid uuid NOT NULL,
  namespace text COLLATE "C" NOT NULL
) WITH (
  autovacuum_vacuum_scale_factor=0.02,
  autovacuum_vacuum_threshold=1000,
  autovacuum_vacuum_cost_delay=0
);

CREATE TABLE flowfabric.deployment (
  name text NOT NULL,
  value bigint NOT NULL,
  PRIMARY KEY (name)
);

CREATE TABLE flowfabric.entry (
  list bytea NOT NULL,
  major bigint NOT NULL,
  tie bytea NOT NULL,
  key bytea NOT NULL,
  PRIMARY KEY (list, major, tie)
) WITH (
  autovacuum_vacuum_scale_factor=0.02,
  autovacuum_vacuum_threshold=1000,
  autovacuum_vacuum_cost_delay=0
);

CREATE TABLE flowfabric.event (
  sequence bigint NOT NULL,
  at bigint NOT NULL,
  count integer NOT NULL,
  bodies bytea NOT NULL,
  PRIMARY KEY (sequence)
) WITH (
  toast_tuple_target=4080,
  autovacuum_vacuum_scale_factor=0.02,
  autovacuum_vacuum_threshold=1000,
  autovacuum_vacuum_cost_delay=0
);

CREATE TABLE flowfabric.execution (
  version bigint NOT NULL,
  uuid uuid NOT NULL,
  partition integer NOT NULL,
  state "char",
  created_at bigint,
  rank bigint,
  lease_expires_at bigint,
  completed_at bigint,
  sweep_from bigint,
  queue uuid,
  lane text COLLATE "C",
  kind text COLLATE "C",
  body bytea NOT NULL,
  definition bytea,
  first_attempt bytea,
  first_stream bytea,
  claim_grant bytea,
  payload bytea,
  outcome bytea,
  tags bytea,
  PRIMARY KEY (partition, uuid)
) WITH (
  fillfactor=70,
  autovacuum_vacuum_scale_factor=0.02,
  autovacuum_vacuum_threshold=1000,
  autovacuum_vacuum_cost_delay=0
);

CREATE TABLE flowfabric.guest (
  id bigint NOT NULL,
  until bigint NOT NULL,
  PRIMARY KEY (id)
);

CREATE TABLE flowfabric.journal (
  number bigint NOT NULL,
  part bigint NOT NULL,
  bytes bytea NOT NULL,
  PRIMARY KEY (number, part)
) WITH (
  toast_tuple_target=8160,
  autovacuum_vacuum_scale_factor=0.02,
  autovacuum_vacuum_threshold=1000,
  autovacuum_vacuum_cost_delay=0
);

CREATE TABLE flowfabric.record (
  key bytea NOT NULL,
  version bigint NOT NULL,
  body bytea NOT NULL,
  long_key bytea,
  PRIMARY KEY (key)
) WITH (
  fillfactor=80,
  autovacuum_vacuum_scale_factor=0.02,
  autovacuum_vacuum_threshold=1000,
  autovacuum_vacuum_cost_delay=0
);

CREATE TABLE flowfabric.reign (
  owner bigint NOT NULL,
  quiet_until bigint NOT NULL
);

CREATE UNIQUE INDEX created_order ON flowfabric.created USING btree (namespace, created_at, partition DESC, uuid DESC) WITH (deduplicate_items=off);

CREATE INDEX execution_eligible ON flowfabric.execution USING btree (queue, rank, partition, uuid) WITH (deduplicate_items=off) WHERE (queue IS NOT NULL);

CREATE INDEX execution_eligible_in ON flowfabric.execution USING btree (partition, lane, rank, uuid) WITH (deduplicate_items=off) WHERE (queue IS NOT NULL);

CREATE INDEX execution_kind_state ON flowfabric.execution USING btree (kind, state, created_at, partition DESC, uuid DESC) WITH (deduplicate_items=off) WHERE ((kind IS NOT NULL) AND ((lease_expires_at IS NULL) OR (state <> 'a'::"char")));

CREATE INDEX execution_lane_state ON flowfabric.execution USING btree (lane, state, created_at, partition DESC, uuid DESC) WITH (deduplicate_items=off) WHERE ((lane IS NOT NULL) AND ((lease_expires_at IS NULL) OR (state <> 'a'::"char")));

CREATE INDEX execution_lease_expiry ON flowfabric.execution USING btree (lease_expires_at, partition, uuid) WITH (deduplicate_items=off) WHERE (lease_expires_at IS NOT NULL);

CREATE INDEX execution_terminal ON flowfabric.execution USING btree (sweep_from, partition, uuid) WITH (deduplicate_items=off) WHERE (sweep_from IS NOT NULL);

CREATE INDEX execution_terminal_in ON flowfabric.execution USING btree (partition, lane, completed_at, uuid) WITH (deduplicate_items=off) WHERE (completed_at IS NOT NULL);

CREATE SEQUENCE flowfabric.event_sequence AS bigint START 1 INCREMENT 1 CACHE 1;

CREATE OR REPLACE FUNCTION flowfabric.commit(places integer[], shared boolean[], waits boolean, executions flowfabric.execution_seen[], records flowfabric.record_seen[], new_version bigint, changed flowfabric.execution_write[], added flowfabric.execution_write[], puts flowfabric.record_write[], events flowfabric.event_write[], owner bigint, number bigint, line bytea[])
 RETURNS bigint
 LANGUAGE plpgsql
AS $function$
DECLARE
  space     constant integer := '"flowfabric"'::pg_catalog.regnamespace::pg_catalog.oid::integer;
  execution "flowfabric".execution_seen;
  actual    bigint;
  reached   bigint;
  written   integer;
  taken     boolean;
BEGIN
  taken := "flowfabric".take(places, shared, waits) IS NOT NULL;

  -- The first of the places is that of the journal: nobody takes it over before this has ended.
  IF pg_catalog.cardinality(line) > 0 THEN
    INSERT INTO "flowfabric".journal (number, part, bytes)
    SELECT commit.number, told.part, told.bytes
    FROM "flowfabric".reign, pg_catalog.unnest(line) WITH ORDINALITY AS told (bytes, part)
    WHERE reign.owner = commit.owner;
  ELSE
    PERFORM FROM "flowfabric".reign WHERE reign.owner = commit.owner;
  END IF;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'dispossessed' USING ERRCODE = 'FF002';
  END IF;

  -- Executions are few and often none, records are often several: a statement costs more than a lookup.
  FOREACH execution IN ARRAY executions LOOP
    SELECT stored.version INTO actual FROM "flowfabric".execution AS stored
    WHERE stored.partition = execution.partition AND stored.uuid = execution.uuid;
    IF COALESCE(actual, 0) IS DISTINCT FROM execution.version THEN
      RAISE EXCEPTION 'stale' USING ERRCODE = 'FF001';
    END IF;
  END LOOP;
  IF pg_catalog.cardinality(records) > 0 THEN
    PERFORM FROM pg_catalog.unnest(records) AS seen LEFT JOIN "flowfabric".record AS stored ON stored.key = seen.key
    WHERE COALESCE(stored.version, 0) <> seen.version;
    IF FOUND THEN
      RAISE EXCEPTION 'stale' USING ERRCODE = 'FF001';
    END IF;
  END IF;

  IF pg_catalog.cardinality(changed) > 0 THEN
    UPDATE "flowfabric".execution AS e SET version = new_version, lane = w.lane, kind = w.kind, state = w.state, queue = w.queue,
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
    INSERT INTO "flowfabric".execution (partition, uuid, version, lane, kind, state, queue, rank, created_at, lease_expires_at, completed_at,
      sweep_from, body, definition, first_attempt, first_stream, claim_grant, payload, outcome, tags)
    SELECT w.partition, w.uuid, new_version, w.lane, w.kind, w.state, w.queue, w.rank, w.created_at, w.lease_expires_at, w.completed_at,
      w.sweep_from, w.body, w.definition, w.first_attempt, w.first_stream, w.claim_grant, w.payload, w.outcome, w.tags
    FROM pg_catalog.unnest(added) AS w;
    INSERT INTO "flowfabric".created (created_at, partition, uuid, namespace)
    SELECT w.created_at, w.partition, w.uuid, w.namespace FROM pg_catalog.unnest(added) AS w WHERE w.namespace IS NOT NULL;
  END IF;

  IF pg_catalog.cardinality(puts) > 0 THEN
    INSERT INTO "flowfabric".record (key, version, body, long_key)
    SELECT w.key, new_version, w.body, w.long_key FROM pg_catalog.unnest(puts) AS w
    ON CONFLICT (key) DO UPDATE SET version = excluded.version, body = excluded.body;
  END IF;

  -- Who reads the log looks for these locks to stay behind the transactions that still write it. The number says that all events of this
  -- transaction come after it. It is in place before the first of them gets its own, and goes away after the commit is visible.
  IF pg_catalog.cardinality(events) > 0 THEN
    reached := COALESCE(pg_catalog.pg_sequence_last_value('"flowfabric".event_sequence'), 0);
    taken := pg_catalog.pg_advisory_xact_lock_shared(~space, (reached & 2147483647)::integer) IS NOT NULL;
    INSERT INTO "flowfabric".event (sequence, at, count, bodies)
    SELECT pg_catalog.nextval('"flowfabric".event_sequence'), w.at, w.count, w.bodies FROM pg_catalog.unnest(events) AS w;
  END IF;

  RETURN pg_catalog.floor(EXTRACT(epoch FROM pg_catalog.clock_timestamp()) * 1000)::bigint;
END
$function$;

CREATE OR REPLACE FUNCTION flowfabric.event_horizon()
 RETURNS bigint
 LANGUAGE plpgsql
AS $function$
DECLARE
  space   constant integer := '"flowfabric"'::pg_catalog.regnamespace::pg_catalog.oid::integer;
  half    constant bigint := 1073741824;
  given   bigint;
  writing bigint;
BEGIN
  SELECT CASE WHEN numbers.is_called THEN numbers.last_value ELSE 0 END INTO given FROM "flowfabric".event_sequence AS numbers;

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
$function$;

CREATE OR REPLACE FUNCTION flowfabric.take(places integer[], shared boolean[], waits boolean)
 RETURNS void
 LANGUAGE plpgsql
AS $function$
DECLARE
  space constant integer := '"flowfabric"'::pg_catalog.regnamespace::pg_catalog.oid::integer;
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
$function$;

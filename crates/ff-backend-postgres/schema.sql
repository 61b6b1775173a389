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
  body bytea NOT NULL,
  PRIMARY KEY (sequence)
) WITH (
  autovacuum_vacuum_scale_factor=0.02,
  autovacuum_vacuum_threshold=1000,
  autovacuum_vacuum_cost_delay=0
);

CREATE TABLE flowfabric.execution (
  partition integer NOT NULL,
  uuid uuid NOT NULL,
  version bigint NOT NULL,
  lane text COLLATE "C",
  kind text COLLATE "C",
  state text COLLATE "C",
  queue bytea,
  rank bigint,
  created_at bigint,
  lease_expires_at bigint,
  completed_at bigint,
  sweep_from bigint,
  body bytea NOT NULL,
  definition bytea,
  first_attempt bytea,
  first_stream bytea,
  claim_grant bytea,
  PRIMARY KEY (partition, uuid)
) WITH (
  fillfactor=70,
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

CREATE UNIQUE INDEX created_order ON flowfabric.created USING btree (created_at, partition DESC, uuid DESC);

CREATE INDEX created_order_in ON flowfabric.created USING btree (namespace, created_at, partition DESC, uuid DESC);

CREATE INDEX execution_eligible ON flowfabric.execution USING btree (queue, rank, partition, uuid) WHERE (queue IS NOT NULL);

CREATE INDEX execution_eligible_in ON flowfabric.execution USING btree (partition, lane, rank, uuid) WHERE (queue IS NOT NULL);

CREATE INDEX execution_kind_state ON flowfabric.execution USING btree (kind, state, created_at, partition DESC, uuid DESC) WHERE (kind IS NOT NULL);

CREATE INDEX execution_lane_state ON flowfabric.execution USING btree (lane, state, created_at, partition DESC, uuid DESC) WHERE (lane IS NOT NULL);

CREATE INDEX execution_lease_expiry ON flowfabric.execution USING btree (lease_expires_at, partition, uuid) WHERE (lease_expires_at IS NOT NULL);

CREATE INDEX execution_terminal ON flowfabric.execution USING btree (sweep_from, partition, uuid) WHERE (sweep_from IS NOT NULL);

CREATE INDEX execution_terminal_in ON flowfabric.execution USING btree (partition, lane, completed_at, uuid) WHERE (completed_at IS NOT NULL);

CREATE SEQUENCE flowfabric.event_sequence AS bigint START 1 INCREMENT 1 CACHE 1;

CREATE OR REPLACE FUNCTION flowfabric.enter(places integer[], shared boolean[], waits boolean, writes_events boolean, partitions integer[], uuids uuid[], versions bigint[], keys bytea[], key_versions bigint[])
 RETURNS bigint
 LANGUAGE plpgsql
AS $function$
DECLARE
  space   constant integer := '"flowfabric"'::pg_catalog.regnamespace::pg_catalog.oid::integer;
  actual  bigint;
  wanted  bytea;
  nth     integer := 0;
  reached bigint;
BEGIN
  FOR at IN 1 .. pg_catalog.cardinality(places) LOOP
    IF NOT waits THEN
      IF NOT (CASE
        WHEN shared[at] THEN pg_catalog.pg_try_advisory_xact_lock_shared(space, places[at])
        ELSE pg_catalog.pg_try_advisory_xact_lock(space, places[at])
      END) THEN
        RAISE EXCEPTION 'stale' USING ERRCODE = 'FF001';
      END IF;
    ELSIF shared[at] THEN
      PERFORM pg_catalog.pg_advisory_xact_lock_shared(space, places[at]);
    ELSE
      PERFORM pg_catalog.pg_advisory_xact_lock(space, places[at]);
    END IF;
  END LOOP;

  -- One lookup by primary key after the other: for a few of them that is many times faster than one statement about all.
  FOR at IN 1 .. pg_catalog.cardinality(partitions) LOOP
    SELECT stored.version INTO actual FROM "flowfabric".execution AS stored
    WHERE stored.partition = partitions[at] AND stored.uuid = uuids[at];
    IF COALESCE(actual, 0) IS DISTINCT FROM versions[at] THEN
      RAISE EXCEPTION 'stale' USING ERRCODE = 'FF001';
    END IF;
  END LOOP;

  -- Not by number: keys differ in length, so that each one would be searched for from the beginning of the array.
  FOREACH wanted IN ARRAY keys LOOP
    nth := nth + 1;
    SELECT stored.version INTO actual FROM "flowfabric".record AS stored WHERE stored.key = wanted;
    IF COALESCE(actual, 0) IS DISTINCT FROM key_versions[nth] THEN
      RAISE EXCEPTION 'stale' USING ERRCODE = 'FF001';
    END IF;
  END LOOP;

  -- Who reads the log looks for these locks to stay behind the transactions that still write it. The number says that all events of this
  -- transaction come after it. It is in place before the first of them gets its own, and goes away after the commit is visible.
  IF writes_events THEN
    SELECT CASE WHEN numbers.is_called THEN numbers.last_value ELSE 0 END INTO reached FROM "flowfabric".event_sequence AS numbers;
    PERFORM pg_catalog.pg_advisory_xact_lock_shared(~space, (reached & 2147483647)::integer);
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

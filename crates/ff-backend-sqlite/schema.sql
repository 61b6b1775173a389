-- Layout 2 of the SQLite store, generated from the migrations; do not edit.

CREATE TABLE deployment (
  name  TEXT NOT NULL PRIMARY KEY,
  value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE entry (
  list  BLOB NOT NULL,
  major INTEGER NOT NULL,
  tie   BLOB NOT NULL,
  key   BLOB NOT NULL,
  PRIMARY KEY (list, major, tie)
) STRICT, WITHOUT ROWID;

CREATE TABLE event (
  sequence INTEGER PRIMARY KEY,
  at       INTEGER NOT NULL,
  body     BLOB NOT NULL
) STRICT;

CREATE TABLE execution (
  id               INTEGER PRIMARY KEY,
  partition        INTEGER NOT NULL,
  uuid             BLOB NOT NULL,
  namespace        TEXT,
  lane             TEXT,
  kind             TEXT,
  state            TEXT,
  created_at       INTEGER,
  queue            BLOB,
  rank             INTEGER,
  lease_expires_at INTEGER,
  completed_at     INTEGER,
  sweep_from       INTEGER,
  body             BLOB NOT NULL,
  definition       BLOB,
  payload          BLOB,
  outcome          BLOB,
  first_attempt    BLOB,
  first_stream     BLOB,
  claim_grant      BLOB
) STRICT;

CREATE TABLE journal (
  slot  INTEGER PRIMARY KEY,
  bytes BLOB NOT NULL
) STRICT;

CREATE TABLE record (
  key  BLOB NOT NULL PRIMARY KEY,
  body BLOB NOT NULL
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX execution_by_id ON execution (partition, uuid);

CREATE INDEX execution_created ON execution (created_at, partition DESC, uuid DESC) WHERE created_at IS NOT NULL;

CREATE INDEX execution_created_in ON execution (namespace, created_at, partition DESC, uuid DESC) WHERE namespace IS NOT NULL;

CREATE INDEX execution_eligible ON execution (queue, rank, partition, uuid) WHERE queue IS NOT NULL;

CREATE INDEX execution_eligible_in ON execution (partition, lane, rank, uuid) WHERE queue IS NOT NULL;

CREATE INDEX execution_kind_state ON execution (kind, state, created_at, partition DESC, uuid DESC) WHERE kind IS NOT NULL;

CREATE INDEX execution_lane_state ON execution (lane, state, created_at, partition DESC, uuid DESC) WHERE lane IS NOT NULL;

CREATE INDEX execution_lease_expiry ON execution (lease_expires_at, partition, uuid) WHERE lease_expires_at IS NOT NULL;

CREATE INDEX execution_terminal ON execution (sweep_from, partition, uuid) WHERE sweep_from IS NOT NULL;

CREATE INDEX execution_terminal_in ON execution (partition, lane, completed_at, uuid) WHERE completed_at IS NOT NULL;

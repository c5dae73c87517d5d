package database

import (
	"fmt"
	"os"
	"strings"
)

// settingsFileName is the file with takt's part of the server's configuration. takt writes it at
// each start. postgresql.conf includes it; later lines there take precedence.
const settingsFileName = "takt.conf"

const includeSettings = `
# takt's settings, written anew at each start. Your own go below this line.
include_if_exists = 'takt.conf'
`

// settings are for a small machine with two cores. They keep commits durable (fsync,
// synchronous_commit, full_page_writes), because an acknowledged submit must never be lost.
const settings = `# Written by takt at each start: changes here are lost, postgresql.conf overrules.
fsync = on
synchronous_commit = on
full_page_writes = on

max_connections = 100
shared_buffers = 128MB
huge_pages = off
work_mem = 8MB
maintenance_work_mem = 64MB
effective_cache_size = 512MB

# One insert-heavy database: fewer, longer checkpoints; recovery stays in seconds.
wal_buffers = 16MB
min_wal_size = 128MB
max_wal_size = 1GB
checkpoint_timeout = 10min
checkpoint_completion_target = 0.9

# Short statements on two cores: parallel plans and compilation only cost.
max_parallel_workers_per_gather = 0
jit = off
random_page_cost = 1.1

# builds and workers are small hot tables that change all the time.
autovacuum_naptime = 15s
autovacuum_vacuum_scale_factor = 0.05
autovacuum_analyze_scale_factor = 0.05
autovacuum_vacuum_cost_delay = 1ms

timezone = 'UTC'
log_timezone = 'UTC'
log_line_prefix = ''
log_min_duration_statement = 1s
log_lock_waits = on
log_checkpoints = off
log_error_verbosity = default
`

// socketPort is only part of the socket's file name, because the server has no network
// address.
const socketPort = 5432

func socketName() string { return fmt.Sprintf(".s.PGSQL.%d", socketPort) }

// socketLockName is the lock file beside the socket. It begins with the same lines as
// postmaster.pid.
func socketLockName() string { return socketName() + ".lock" }

// arguments are the settings that takt depends on. They are on the command line, because
// no configuration file can override them there. dir is the cluster's path as the server
// sees it.
func arguments(dir string) []string {
	args := []string{"-D", dir}
	for _, setting := range []string{
		"listen_addresses=",
		"unix_socket_directories=.", // relative to the cluster, so that no parent directory has to be accessible
		"unix_socket_permissions=0700",
		fmt.Sprintf("port=%d", socketPort),
		"log_destination=stderr",
		"logging_collector=off",
		"password_encryption=scram-sha-256",
	} {
		args = append(args, "-c", setting)
	}
	return args
}

// applySettings writes takt's settings and reports whether they changed, because a server
// that already runs has not read them.
func applySettings(cluster *os.Root, to owner) (changed bool, err error) {
	old, err := cluster.ReadFile(settingsFileName)
	if err == nil && string(old) == settings {
		return false, nil
	}
	if err := writeFile(cluster, settingsFileName, settings, &to); err != nil {
		return false, fmt.Errorf("writing the server's settings: %w", err)
	}
	return true, nil
}

// includeOurs makes a new cluster's postgresql.conf include takt's settings.
func includeOurs(cluster *os.Root, to owner) error {
	const name = "postgresql.conf"
	text, err := cluster.ReadFile(name)
	if err != nil {
		return fmt.Errorf("reading the new cluster's %s: %w", name, err)
	}
	if strings.Contains(string(text), includeSettings) {
		return nil
	}
	if err := writeFile(cluster, name, string(text)+includeSettings, &to); err != nil {
		return fmt.Errorf("writing the new cluster's %s: %w", name, err)
	}
	return nil
}

package database

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// Connect returns a connection to the database of a source. The caller closes it.
func Connect(ctx context.Context, source Source) (*pgx.Conn, error) {
	cfg, err := source(ctx)
	if err != nil {
		return nil, err
	}
	return dial(ctx, cfg)
}

const sqlDumped = `SELECT current_setting('server_version_num')::int / 10000, current_schema()`

// Dump writes takt's schema and all its rows to w, from one snapshot and in the plain format of
// pg_dump. address is the database URL from which source was made, "" for the embedded server.
// pg_dump is looked for in the same places as the server's programs.
func Dump(ctx context.Context, source Source, address, searchPath string, w io.Writer) error {
	conn, err := Connect(ctx, source)
	if err != nil {
		return err
	}
	var major int
	var schema string
	err = conn.QueryRow(ctx, sqlDumped).Scan(&major, &schema)
	cfg := conn.Config() // of the host that answered
	hangUp(conn)
	if err != nil {
		return fmt.Errorf("reading the database's version: %w", err)
	}
	program, err := findDump(ctx, append(wellKnown(), filepath.SplitList(searchPath)...), major)
	if err != nil {
		return err
	}
	host := cfg.Host
	var files []*os.File
	if strings.HasPrefix(host, "/") { // the path of a socket may be too long
		home, err := os.Open(host)
		if err != nil {
			return fmt.Errorf("opening the directory of the database's socket: %w", err)
		}
		defer home.Close()
		host, files = inherited(home, host)
	}
	cmd := exec.CommandContext(ctx, program, "--no-password", "--no-owner", "--no-privileges", "--no-comments", "--no-security-labels",
		"--no-publications", "--no-subscriptions", "--no-tablespaces", `--schema="`+strings.ReplaceAll(schema, `"`, `""`)+`"`,
		fmt.Sprintf("--dbname=host=%s port=%d user=%s dbname=%s%s", quoted(host), cfg.Port, quoted(cfg.User), quoted(cfg.Database), tlsSettings(address)))
	cmd.Env = environment(Binaries{Dir: filepath.Dir(program)})
	if address != "" {
		cmd.Env = os.Environ() // its PG… variables count, as they do for takt
	}
	cmd.Env = append(cmd.Env, "PGPASSWORD="+cfg.Password)
	cmd.ExtraFiles = files
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(cmd.SysProcAttr)
	cmd.WaitDelay = 5 * time.Second
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = w, &output
	if err := cmd.Run(); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return fmt.Errorf("%s: %w: %s", program, err, lastLines(output.String(), 3))
	}
	return nil
}

// findDump returns the oldest pg_dump that is not older than the server.
func findDump(ctx context.Context, globs []string, server int) (program string, err error) {
	best, newest := 0, 0
	for _, glob := range globs {
		found, err := filepath.Glob(filepath.Join(glob, "pg_dump"))
		if err != nil {
			return "", fmt.Errorf("looking for pg_dump in %q: %w", glob, err)
		}
		for _, path := range found {
			major, err := majorOf(ctx, path)
			if err != nil {
				continue
			}
			if newest = max(newest, major); major >= server && (best == 0 || major < best) {
				program, best = path, major
			}
		}
	}
	if best > 0 {
		return program, nil
	}
	have := "this machine has none"
	if newest > 0 {
		have = fmt.Sprintf("this machine has only version %d", newest)
	}
	return "", fmt.Errorf("pg_dump of PostgreSQL %d or newer is needed, because the server is PostgreSQL %d, and %s: "+
		"install it (Debian: apt-get install postgresql-client-%d · macOS: brew install postgresql@%d)", server, server, have, server, server)
}

// tlsSetting matches the settings in a database URL, of either form, that say how to connect
// over TLS.
var tlsSetting = regexp.MustCompile(`\b(sslmode|sslrootcert|sslcert|sslkey|sslsni|ssl_min_protocol_version)\s*=\s*('(?:\\.|[^'\\])*'|[^\s&]+)`)

// tlsSettings returns these settings in the form of a libpq connection string.
func tlsSettings(address string) string {
	isURL := strings.Contains(address, "://")
	var out strings.Builder
	for _, m := range tlsSetting.FindAllStringSubmatch(address, -1) {
		value := m[2]
		if isURL {
			plain, err := url.QueryUnescape(value)
			if err != nil {
				continue // pgx has refused it
			}
			value = quoted(plain)
		}
		out.WriteString(" " + m[1] + "=" + value)
	}
	return out.String()
}

// quoted returns a value of a connection string of libpq.
func quoted(value string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(value) + "'"
}

package install

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"takt/cmd/internal/process"
	"takt/cmd/internal/takttest"
	"takt/http/api"
	"takt/http/client"
	"takt/http/tlstest"
	"takt/store/storetest/tied"
)

// requireWorks has two controllers and their workers do builds, with notifications, files and
// no trouble.
func requireWorks(t *testing.T, env *takttest.Env, builds int, settings ...string) {
	t.Helper()
	settings = append(settings, takttest.SharedKeys()...)
	one := env.StartController("one", append(settings, "TAKT_DB_POOL=4")...)
	second := filepath.Join(env.Dir, "two")
	require.NoError(t, os.Mkdir(second, 0o700))
	require.NoError(t, os.Symlink(filepath.Join(one.DataDir, "files"), filepath.Join(second, "files")))
	two := env.StartController("two", append(settings, "TAKT_DB_POOL=4")...)
	both := []*process.Controller{one, two}
	for i, c := range both {
		env.StartWorker(c, fmt.Sprintf("worker-%d", i), takttest.CopyOrder)
		require.Eventually(t, func() bool {
			node, err := c.Client.Tree(t.Context(), client.TreeOptions{Path: "database/listener"})
			return err == nil && node.Status == "running"
		}, takttest.Patience, takttest.Tick, "it listens")
	}
	var all sync.WaitGroup
	for i := range builds {
		all.Go(func() {
			c := both[i%2]
			want := fmt.Sprintf("order %d", i)
			id := takttest.Submit(t, c, takttest.Zip(t, map[string]string{"order.txt": want}))
			takttest.Eventually(t, "it is built", func() bool { return takttest.Status(t, c, id).Status == "completed" })
			require.Equal(t, want, takttest.Download(t, both[(i+1)%2], id))
		})
	}
	all.Wait()
	for _, c := range both {
		found := takttest.Call(t, c, api.CheckInvariants, api.None{})
		for _, i := range found.Invariants {
			require.Zero(t, i.Broken, i.Promise)
		}
		takttest.RequireWell(t, c)
	}
}

// The login is a certificate, the server shows one too, and the role owns nothing but its
// schema.
func TestADatabaseWithClientCertificatesAndOneSchema(t *testing.T) {
	t.Parallel()
	n, dir := takttest.NewPostgres(t)
	authority := tlstest.NewAuthority(t)
	ca := filepath.Join(dir, "ca.pem")
	require.NoError(t, os.WriteFile(ca, authority.PEM, 0o644))
	cert, key := authority.Issue(t, dir, 1)
	for _, file := range []string{cert, key} {
		if n.User != nil {
			require.NoError(t, os.Chown(file, int(n.User.Uid), int(n.User.Gid)))
		}
	}
	rules := "hostssl all takt_app 127.0.0.1/32 cert map=app\nhost all takt 127.0.0.1/32 trust\n"
	require.NoError(t, os.WriteFile(filepath.Join(n.Dir, "pg_hba.conf"), []byte(rules), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(n.Dir, "pg_ident.conf"), []byte("app takt takt_app\n"), 0o644))
	require.NoError(t, n.Start("-c", "fsync=off", "-c", "ssl=on", "-c", "ssl_ca_file="+ca, "-c", "ssl_cert_file="+cert, "-c", "ssl_key_file="+key))
	t.Cleanup(n.Stop)
	takttest.Answer(t, n, `SELECT 'up'`)
	for _, sql := range []string{
		"CREATE ROLE takt_app LOGIN", "REVOKE CREATE, TEMPORARY ON DATABASE postgres FROM PUBLIC", "REVOKE ALL ON SCHEMA public FROM PUBLIC",
		"CREATE SCHEMA builds AUTHORIZATION takt_app", "ALTER ROLE takt_app SET search_path = builds",
	} {
		require.NoError(t, n.Exec(t.Context(), sql))
	}
	url := fmt.Sprintf("host=127.0.0.1 port=%d user=takt_app dbname=postgres sslmode=verify-full sslrootcert=%s sslcert=%s sslkey=%s", n.Port, ca, cert, key)
	env := takttest.NewEnv(t)
	requireWorks(t, env, 4, "TAKT_DATABASE_URL="+url)
	require.Equal(t, "0", takttest.Answer(t, n, "SELECT count(*)::text FROM pg_tables WHERE schemaname = 'public'"))
	require.Equal(t, "t", takttest.Answer(t, n, "SELECT left(bool_and(ssl)::text, 1) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename = 'takt_app'"))
	refused, err := env.Launch("stranger", append(takttest.SharedKeys(), "TAKT_DATABASE_URL="+strings.Replace(url, "sslcert="+cert+" sslkey="+key, "", 1)), "doctor")
	require.NoError(t, err)
	<-refused.Done()
	require.Contains(t, refused.Output(), "requires a valid client certificate")

	// A backup by such a login, restored by one that may not create a schema.
	require.NoError(t, n.Exec(t.Context(), "CREATE DATABASE other"))
	other, err := pgx.Connect(t.Context(), strings.Replace(n.URL(), "/postgres?", "/other?", 1))
	require.NoError(t, err)
	_, err = other.Exec(t.Context(), "CREATE SCHEMA builds AUTHORIZATION takt_app; REVOKE ALL ON SCHEMA public FROM PUBLIC")
	require.NoError(t, err)
	require.NoError(t, other.Close(t.Context()))
	backups := filepath.Join(env.Dir, "backups")
	env.MustRun(append(takttest.SharedKeys(), "TAKT_DATABASE_URL="+url, "TAKT_DATA_DIR="+filepath.Join(env.Dir, "one")), "backup", backups)
	restoring := append(takttest.SharedKeys(), "TAKT_DATABASE_URL="+strings.Replace(url, "dbname=postgres", "dbname=other", 1), "TAKT_DATA_DIR="+filepath.Join(env.Dir, "other"))
	env.MustRun(restoring, "restore", backups)
	env.MustRun(restoring, "storage", "verify", "--digest")
}

// TestInstallPgBouncer has PgBouncer between takt and PostgreSQL, with fewer connections than
// two controllers have sessions. Only notifications and migrations go past it.
func TestInstallPgBouncer(t *testing.T) {
	installTest(t)
	n, dir := takttest.NewPostgres(t)
	require.NoError(t, n.Start("-c", "fsync=off"))
	t.Cleanup(n.Stop)
	takttest.Answer(t, n, `SELECT 'up'`)
	operate, err := os.ReadFile(takttest.File("docs", "operate.md"))
	require.NoError(t, err)
	logins := strings.Split(string(operate), "```text\nALTER ROLE takt SET ")[1]
	logins, _, _ = strings.Cut("ALTER ROLE takt SET "+logins, "```")
	require.NoError(t, n.Exec(t.Context(), logins))

	port := takttest.FreePort(t)
	config := fmt.Sprintf(`[databases]
postgres = host=127.0.0.1 port=%d
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %s
unix_socket_dir =
auth_type = trust
auth_file = %s/users
pool_mode = transaction
default_pool_size = 3
max_client_conn = 100
`, n.Port, port, dir)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "pgbouncer.ini"), []byte(config), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "users"), []byte("\"takt\" \"\"\n"), 0o644))
	cache, err := os.UserCacheDir()
	require.NoError(t, err)
	program := filepath.Join(cache, "takt", "tools", "pgbouncer")
	require.FileExists(t, program, "run `.ci/setup pgbouncer` once")
	copied := filepath.Join(dir, "pgbouncer") // where its account can reach it
	raw, err := os.ReadFile(program)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(copied, raw, 0o755))
	var said bytes.Buffer
	bouncer := exec.Command(copied, filepath.Join(dir, "pgbouncer.ini"))
	bouncer.SysProcAttr = &syscall.SysProcAttr{Credential: n.User}
	bouncer.Stdout, bouncer.Stderr, bouncer.Dir = &said, &said, dir
	wait, err := tied.Start(bouncer)
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = bouncer.Process.Kill()
		_ = wait()
		if t.Failed() {
			t.Logf("pgbouncer said:\n%s", &said)
		}
	})
	requireWorks(t, takttest.NewEnv(t), 60, "TAKT_DATABASE_DIRECT_URL="+n.URL(),
		"TAKT_DATABASE_URL=postgres://takt@127.0.0.1:"+port+"/postgres?sslmode=disable")
	require.Equal(t, "2", takttest.Answer(t, n, "SELECT count(*)::text FROM pg_stat_activity WHERE application_name = 'takt listener'"))
	require.Equal(t, "true", takttest.Answer(t, n, `SELECT (count(*) > 3 AND count(*) FILTER (WHERE application_name <> 'takt listener') <= 3)::text
		FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()`), "all but the listeners shares PgBouncer's connections")
}

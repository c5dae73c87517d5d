package builds

import (
	"bytes"
	"encoding/base64"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/process"
	"takt/cmd/internal/takttest"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
	"takt/store/storetest/needs"
)

const (
	token = "tok.e2n/with+signs"
	key   = "-----BEGIN KEY-----\nline one of the key\nsh0rt\n-----END KEY-----\n"
)

func setSecrets(t *testing.T, c *process.Controller) store.Inputs {
	t.Helper()
	for name, value := range map[string]string{"API_TOKEN": token, "KEY": key} {
		_, err := client.Call(t.Context(), c.Client, api.SetSecret, api.SetSecretIn{Name: api.SecretName(name), Body: api.SecretContent{Value: []byte(value), AllKeys: true}})
		require.NoError(t, err)
	}
	return store.Inputs{Secrets: map[string]string{"API_TOKEN": store.SecretEnv, "KEY": store.SecretFile}}
}

// said is all that a controller says of a build.
func said(t *testing.T, c *process.Controller, id string) string {
	t.Helper()
	logs, err := c.Client.Logs(t.Context(), id, client.BuildAuth{}, client.LogsAfter{})
	require.NoError(t, err)
	all := strings.Join(takttest.Messages(logs), "\n")
	if text := takttest.Status(t, c, id).ErrorMessage; text != nil {
		all += "\n" + *text
	}
	return all
}

func requireMasked(t *testing.T, text string) {
	t.Helper()
	for _, form := range []string{token, base64.StdEncoding.EncodeToString([]byte(token)), "line one", "sh0rt"} {
		require.NotContains(t, text, form)
	}
}

// TestSecretsReachTheCommandOnly of a real worker, also of one after that was killed, and a build whose
// secret is gone never runs.
func TestSecretsReachTheCommandOnly(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	c := env.StartController("takt")
	in := setSecrets(t, c)
	submit := func() string {
		t.Helper()
		b, err := c.Client.Submit(t.Context(), client.Submit{Platform: store.IOS, Source: client.Bytes(takttest.Zip(t, map[string]string{"a": "b"})), Inputs: in})
		require.NoError(t, err)
		return b.ID
	}
	const command = `echo "it is $API_TOKEN"; printf %s "$API_TOKEN" | base64; cat "$TAKT_SECRETS/KEY"
	[ "$TAKT_ATTEMPT" != 1 ] || { echo begun; sleep 1000; }
	{ echo "$API_TOKEN"; cat "$TAKT_SECRETS/KEY"; } > "$TAKT_OUTPUT"; cat "$TAKT_SECRETS/KEY" >&2; exit 0`
	start := func() *process.Process {
		p, err := env.Worker(c, "worker", command, nil, "--heartbeat", "500ms", "--accept-secrets")
		require.NoError(t, err)
		t.Cleanup(func() {
			p.Kill()
			env.LogOnFailure("worker", p)
		})
		return p
	}
	id := submit()
	worker := start()
	takttest.Eventually(t, "it runs", func() bool { return strings.Contains(said(t, c, id), "begun") })
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	for _, path := range paths {
		raw, _ := os.ReadFile(path)
		require.NotContains(t, string(raw), token)
	}
	file := filepath.Join(env.WorkerState("worker"), "builds", id+"-1", "secrets", "KEY")
	require.FileExists(t, file)
	worker.Kill()
	takttest.Eventually(t, "the file is removed", func() bool { _, err := os.Stat(file); return err != nil })

	worker = start()
	takttest.Eventually(t, "the next attempt completes", func() bool { return takttest.Status(t, c, id).State == string(store.Completed) })
	require.Equal(t, token+"\n"+key, takttest.Download(t, c, id))
	text := said(t, c, id)
	require.Contains(t, text, "it is ***")
	requireMasked(t, text)

	require.NoError(t, worker.Stop(t.Context(), takttest.Patience))
	requireMasked(t, worker.Output())
	id = submit()
	_, err = client.Call(t.Context(), c.Client, api.RemoveSecret, api.RemoveSecretIn{Name: "KEY"})
	require.NoError(t, err)
	start()
	takttest.Eventually(t, "it fails", func() bool { return takttest.Status(t, c, id).State == string(store.Failed) })
	require.NotContains(t, said(t, c, id), "it is")
	require.Contains(t, *takttest.Status(t, c, id).ErrorMessage, "KEY")
}

func TestDocsShellWorkerHasSecrets(t *testing.T) {
	t.Parallel()
	needs.Curl(t)
	needs.JQ(t)
	script, err := filepath.Abs(takttest.File("docs", "worker.sh"))
	require.NoError(t, err)
	env := takttest.NewEnv(t)
	c := env.StartController("takt")
	in, dir := setSecrets(t, c), t.TempDir()
	b, err := c.Client.Submit(t.Context(), client.Submit{Platform: store.Android, Source: client.Bytes([]byte("source")), Inputs: in})
	require.NoError(t, err)
	worker := exec.CommandContext(t.Context(), "bash", script, `echo "it is $API_TOKEN"; cat "$TAKT_SECRETS/KEY"; { echo "$API_TOKEN"; cat "$TAKT_SECRETS/KEY"; } > "$OUTPUT"`)
	worker.Env = env.Environment("TAKT_URL="+c.URL, "TAKT_API_KEY="+c.APIKey, "WORKER_ID=shell", "ACCEPT_SECRETS=1", "TMPDIR="+dir)
	var out bytes.Buffer
	worker.Stdout, worker.Stderr = &out, &out
	worker.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	worker.Cancel = func() error { return syscall.Kill(-worker.Process.Pid, syscall.SIGKILL) }
	worker.WaitDelay = 10 * time.Second
	require.NoError(t, worker.Start())
	takttest.Eventually(t, "the build completes", func() bool { return takttest.Status(t, c, b.ID).Status == string(store.Completed) })
	require.Equal(t, token+"\n"+key, takttest.Download(t, c, b.ID))
	text := said(t, c, b.ID)
	require.Contains(t, text, "it is ***")
	requireMasked(t, text)
	files, err := filepath.Glob(filepath.Join(dir, "*", "secrets", "*"))
	require.NoError(t, err)
	require.Empty(t, files)
	require.NoError(t, syscall.Kill(-worker.Process.Pid, syscall.SIGTERM))
	require.NoError(t, worker.Wait(), out.String())
	requireMasked(t, out.String())
}

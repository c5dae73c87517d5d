package builds

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/cli"
	"takt/cmd/internal/command"
	"takt/cmd/internal/takttest"
	"takt/http/tlstest"
	"takt/store"
)

func TestFleetWorksOverTLS(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	ca := tlstest.NewAuthority(t)
	cert, key := ca.Issue(t, env.Dir, 1)
	caFile := filepath.Join(env.Dir, "ca.pem")
	require.NoError(t, os.WriteFile(caFile, ca.PEM, 0o600))
	c := env.StartController("takt", "TAKT_TLS_CERT="+cert, "TAKT_TLS_KEY="+key, "TAKT_CA_FILE="+caFile)
	require.True(t, strings.HasPrefix(c.URL, "https://"))
	env.StartWorker(c, "one", takttest.CopyOrder, "TAKT_CA_FILE="+caFile)
	id := takttest.Submit(t, c, takttest.Zip(t, map[string]string{"order.txt": "over TLS"}))
	takttest.Eventually(t, "the build completes", func() bool { return takttest.Status(t, c, id).Status == string(store.Completed) })
	require.Equal(t, "over TLS", takttest.Download(t, c, id))

	list := func(args ...string) (string, int) {
		var out bytes.Buffer
		root := command.New(takttest.Environment("TAKT_URL", c.URL, "TAKT_API_KEY", c.APIKey))
		code := cli.Execute(t.Context(), root, append([]string{"list"}, args...), &out, &out)
		return out.String(), code
	}
	out, code := list("--ca-file", caFile)
	require.Zero(t, code, out)
	require.Contains(t, out, id)
	out, code = list("--ca-file", key)
	require.Equal(t, 2, code, out)
	require.NotContains(t, out, "PRIVATE KEY")
	out, code = list("--ca-file", filepath.Join(env.Dir, "none"))
	require.Equal(t, 2, code, out)
}

func TestServeCheckTriesTheCertificate(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	cert, key := tlstest.NewAuthority(t).Issue(t, env.Dir, 1)
	check := func(cert, key string) (string, error) {
		p, err := env.Launch("check", []string{"TAKT_TLS_CERT=" + cert, "TAKT_TLS_KEY=" + key}, "serve", "--check")
		require.NoError(t, err)
		<-p.Done()
		return p.Output(), p.Failure()
	}
	out, err := check(cert, key)
	require.NoError(t, err, out)
	require.Contains(t, out, cert)
	for _, files := range [][2]string{{cert, ""}, {"", key}, {key, cert}, {cert, filepath.Join(env.Dir, "none")}} {
		out, err = check(files[0], files[1])
		require.Error(t, err, out)
		require.Contains(t, strings.ToLower(out), "tls")
	}
}

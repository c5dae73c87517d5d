package command_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/cli"
	"takt/cmd/internal/command"
	"takt/cmd/internal/controllertest"
	"takt/http/api"
)

// types runs a command with a standard input.
func (d *terminal) types(t *testing.T, input string, args ...string) (code int, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	root := command.New(func(name string) (string, bool) {
		value, ok := d.env[name]
		return value, ok
	})
	root.SetIn(strings.NewReader(input))
	code = cli.Execute(t.Context(), root, args, &o, &e)
	return code, o.String(), e.String()
}

func TestSecretCommands(t *testing.T) {
	t.Parallel()
	d := newTerminal(t)
	var sent []api.SecretContent
	d.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		switch r.Method + " " + r.URL.RequestURI() {
		case "PUT /admin/secrets/APP_TOKEN":
			raw, _ := io.ReadAll(r.Body)
			var c api.SecretContent
			if json.Unmarshal(raw, &c) != nil || r.Header.Get("X-Admin-Key") != controllertest.AdminKey {
				return false
			}
			sent = append(sent, c)
			controllertest.JSON(w, 200, api.Secret{Name: "APP_TOKEN", Keys: c.Keys, AllKeys: c.AllKeys, Masked: !c.NoMask})
		case "GET /admin/secrets":
			controllertest.JSON(w, 200, api.Secrets{Secrets: []api.Secret{{Name: "A", Keys: []string{"ci", "x"}, Masked: true}, {Name: "B", AllKeys: true}}})
		case "DELETE /admin/secrets/APP_TOKEN?reason=over":
			w.WriteHeader(204)
		default:
			return false
		}
		return true
	})
	code, out, errs := d.types(t, "hunter2\r\n", "secret", "set", "APP_TOKEN", "--key", "ci", "--key", "nightly", "--reason", "new")
	require.Zero(t, code, errs)
	require.Equal(t, "APP_TOKEN set for builds of ci, nightly\n", out)
	file := d.file(t, "key.p8", "two\nlines\n")
	_, out, _ = d.types(t, "ignored", "secret", "set", "APP_TOKEN", "--all", "--no-mask", "--file", file)
	require.Equal(t, "APP_TOKEN set for builds of all keys, not masked\n", out)
	require.Equal(t, []api.SecretContent{
		{Value: []byte("hunter2"), Keys: []string{"ci", "nightly"}, Reason: "new"}, {Value: []byte("two\nlines\n"), AllKeys: true, NoMask: true},
	}, sent)
	require.Regexp(t, `A +ci, x +yes .*\nB +all keys +no `, d.ok(t, "secret", "list"))
	require.Equal(t, "removed\n", d.ok(t, "secret", "remove", "APP_TOKEN", "--reason", "over"))

	for _, c := range []struct {
		says  string
		input string
		args  []string
	}{
		{"say whose builds may have it", "hunter2", []string{"APP_TOKEN"}},
		{"say whose builds may have it", "hunter2", []string{"APP_TOKEN", "--all", "--key", "ci"}},
		{"less than 6 bytes", "abc\n", []string{"APP_TOKEN", "--all"}},
		{"must not be empty", "\n", []string{"APP_TOKEN", "--all"}},
		{"at most 65536 bytes", strings.Repeat("x", 65537), []string{"APP_TOKEN", "--all"}},
		{"The name of a secret", "hunter2", []string{"hunter2-typed-as-name", "--all"}},
		{"no such file", "", []string{"APP_TOKEN", "--all", "--file", d.dir + "/none"}},
		{"accepts 1 arg(s)", "", []string{"APP_TOKEN", "hunter2", "--all"}},
	} {
		code, _, errs := d.types(t, c.input, append([]string{"secret", "set"}, c.args...)...)
		require.Equal(t, cli.ExitUsage, code, errs)
		require.Contains(t, errs, c.says)
	}
	require.Len(t, sent, 2, "nothing else was sent")
	require.Zero(t, d.Requests("PUT /admin/secrets/hunter2-typed-as-name"))
}

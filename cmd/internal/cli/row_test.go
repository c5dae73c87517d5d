package cli_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"takt/cmd/internal/cli"
	"takt/http/api"
)

// A row sends what was given and no more, repeats only what may be repeated, and sends nothing
// without the reason that it needs.
func TestRowSendsWhatWasGiven(t *testing.T) {
	t.Parallel()
	limit := func(reason func(*cli.Flags, *string)) func(in *api.LimitKeyIn, f *cli.Flags) {
		return func(in *api.LimitKeyIn, f *cli.Flags) {
			cli.Arg(f, &in.Name)
			cli.Given(f, &in.Body.Weight, "weight", f.Int("weight", 1, "turns"))
			reason(f, &in.Body.Reason)
		}
	}
	may := limit((*cli.Flags).Reason)
	must := limit(func(f *cli.Flags, to *string) { f.NeedReason(to, nil) })
	for _, tt := range []struct {
		name  string
		call  cli.Call[api.LimitKeyIn, api.Key]
		bind  func(in *api.LimitKeyIn, f *cli.Flags)
		args  []string
		code  int
		calls []string
		out   string
	}{
		{"as given, and again", cli.Ask(api.LimitKey), may, []string{"ci"}, cli.ExitOK, []string{"PATCH /admin/keys/ci {}", "PATCH /admin/keys/ci {}"}, "ci has 7\n"},
		{"a default that was given", cli.Ask(api.LimitKey), may, []string{"ci", "--weight", "1", "--json"}, cli.ExitOK, []string{`PATCH /admin/keys/ci {"weight":1}`, `PATCH /admin/keys/ci {"weight":1}`}, "7\n"},
		{"an order, once", cli.Order(api.LimitKey), must, []string{"ci", "--reason", "why"}, cli.ExitUnavailable, []string{`PATCH /admin/keys/ci {"reason":"why"}`}, ""},
		{"no reason", cli.Order(api.LimitKey), must, []string{"ci"}, cli.ExitUsage, nil, ""},
		{"no argument", cli.Order(api.LimitKey), may, nil, cli.ExitUsage, nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var calls []string
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				if calls = append(calls, fmt.Sprintf("%s %s %s", r.Method, r.URL.Path, body)); len(calls) == 1 {
					w.WriteHeader(http.StatusServiceUnavailable)
					return
				}
				_, _ = io.WriteString(w, `{"name":"ci","weight":7}`)
			}))
			t.Cleanup(server.Close)
			part := cli.Part(func(k api.Key) int { return k.Weight }, func(w io.Writer, weight int) { fmt.Fprintln(w, "ci has", weight) })
			root := &cobra.Command{Use: "takt"}
			root.AddCommand(cli.Row(func(string) (string, bool) { return "", false }, &cobra.Command{Use: "set NAME"}, tt.call, part, tt.bind))
			var out, errs bytes.Buffer
			code := cli.Execute(t.Context(), root, append([]string{"set", "--url", server.URL}, tt.args...), &out, &errs)
			require.Equal(t, tt.code, code, errs.String())
			require.Equal(t, tt.calls, calls)
			require.Equal(t, tt.out, out.String())
		})
	}
}

package operating

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"takt/cmd/internal/cli"
	"takt/http/api"
	"takt/store"
)

// Secrets returns takt secret.
func Secrets(env cli.Environment) *cobra.Command {
	return cli.Group(&cobra.Command{
		Use: "secret", Short: "Set, list and remove the secrets that builds ask for",
		Long: `Set, list and remove the secrets that builds ask for by name (takt submit --secret). A
value is sealed and never shown again: only the worker that holds such a build gets it.
docs/secrets.md says more. These commands need the admin key in TAKT_ADMIN_KEY.`,
	},
		cli.Row(env, &cobra.Command{
			Use: "set NAME (--key KEY | --all)", Short: "Set a secret, from standard input or a file",
			Long: `Set a secret, from standard input or a file: at most 64 KiB. From standard input a line
break at the end is left out; at a terminal, takt asks and does not show what you type.
The value is never an argument, because everybody on the machine can read those.

Say whose builds may have it: those of some keys (--key, which may be repeated), or of all
keys and of the API key (--all). Setting it again replaces all of that.

Workers leave the value out of logs, errors and reports. With --no-mask they don't.`,
			Example: "  takt secret set APP_STORE_KEY --key ci --file AuthKey.p8\n  pass show sentry | takt secret set SENTRY_AUTH_TOKEN --all",
		}, cli.Ask(api.SetSecret), cli.Text(func(w io.Writer, s api.Secret) {
			fmt.Fprintf(w, "%s set for builds of %s%s\n", s.Name, ownersText(s), map[bool]string{false: ", not masked"}[s.Masked])
		}), func(in *api.SetSecretIn, f *cli.Flags) {
			cli.Arg(f, &in.Name)
			file := f.String("file", "", "file with the value, which is taken as it is")
			f.StringArrayVar(&in.Body.Keys, "key", nil, "name of a key whose builds may have it; may be repeated")
			f.BoolVar(&in.Body.AllKeys, "all", false, "builds of all keys may have it, those of the API key included")
			f.BoolVar(&in.Body.NoMask, "no-mask", false, "leave the value in logs; only so it may have less than 6 bytes")
			f.Reason(&in.Body.Reason)
			f.Check(func() (err error) {
				if err := store.CheckSecretName(string(in.Name)); err != nil { // a value in its place must not be sent
					return cli.AsUsage(err)
				}
				if in.Body.AllKeys == (len(in.Body.Keys) > 0) {
					return cli.Usage("say whose builds may have it: --key KEY, which may be repeated, or --all")
				}
				in.Body.Value, err = readValue(f.Command, *file)
				if err != nil {
					return err
				}
				s := store.Secret{Name: string(in.Name), Keys: in.Body.Keys, AllKeys: in.Body.AllKeys, Mask: !in.Body.NoMask}
				return cli.AsUsage(s.Check(in.Body.Value))
			})
		}),
		cli.Row(env, &cobra.Command{Use: "list", Short: "List the secrets, without their values"}, cli.Ask(api.ListSecrets),
			cli.Rows(func(l api.Secrets) []api.Secret { return l.Secrets }, []string{"NAME", "BUILDS OF", "MASKED", "SET", "BY"}, func(s api.Secret) []string {
				return []string{s.Name, ownersText(s), map[bool]string{true: "yes", false: "no"}[s.Masked], cli.TimeText(s.UpdatedAt), store.Lines(s.UpdatedBy)}
			}), nil),
		cli.Row(env, &cobra.Command{
			Use: "remove NAME", Short: "Remove a secret; builds that wait and ask for it fail",
		}, cli.Order(api.RemoveSecret), cli.Says[api.None]("removed"), func(in *api.RemoveSecretIn, f *cli.Flags) {
			cli.Arg(f, &in.Name)
			f.Reason(&in.Reason)
		}),
	)
}

// ownersText names the keys whose builds may have a secret.
func ownersText(s api.Secret) string {
	if s.AllKeys {
		return "all keys"
	}
	return strings.Join(s.Keys, ", ")
}

// readValue reads the value of a secret from a file, or else from standard input.
func readValue(cmd *cobra.Command, file string) ([]byte, error) {
	in, isFile := cmd.InOrStdin().(*os.File)
	switch {
	case file != "":
		f, err := os.Open(file)
		if err != nil {
			return nil, cli.AsUsage(err)
		}
		defer f.Close()
		return atMost(f)
	case isFile && term.IsTerminal(int(in.Fd())):
		fmt.Fprint(cmd.ErrOrStderr(), "value, not shown: ")
		value, err := term.ReadPassword(int(in.Fd()))
		fmt.Fprintln(cmd.ErrOrStderr())
		return value, err
	}
	value, err := atMost(cmd.InOrStdin())
	if line, ok := bytes.CutSuffix(value, []byte("\n")); ok {
		value = bytes.TrimSuffix(line, []byte("\r"))
	}
	return value, err
}

// atMost reads one byte more than a value may have at most, and a line break.
func atMost(r io.Reader) ([]byte, error) {
	return io.ReadAll(io.LimitReader(r, store.MaxSecretValue+3))
}

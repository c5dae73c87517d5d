package fleet

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"takt/cmd/internal/cli"
	"takt/http/api"
	"takt/http/client"
)

// workerEnv is the file from which takt-worker.service has its environment.
const workerEnv = "/etc/takt/worker.env"

// enrolledWorker says what takt worker enroll did.
type enrolledWorker struct {
	Name string `json:"name"` // of the key
	File string `json:"file"`
}

func newWorkerEnrollCommand(env cli.Environment) *cobra.Command {
	r := cli.Remote{Env: env}
	var name, file string
	cmd := &cobra.Command{
		Use: "enroll TOKEN", Short: "Give this machine's worker a key that its builds can't read", Args: cobra.ExactArgs(1),
		Long: `Get a key for the worker of this machine and write it, as TAKT_API_KEY, into a file of
environment variables that only root can read. Run it once, as root. TOKEN comes from
takt keys enroll and can be used once.

systemd reads the file for takt-worker.service. The worker removes the key from its
environment before its first build, so builds can't read it. If the file has a TAKT_URL or
a TAKT_CA_FILE, these are used here too; what --url and --ca-file say is written into it.
Start the worker anew afterwards: the key is for the first worker id that registers with it.`,
		Example: "  takt worker enroll --url https://takt.example.com TOKEN",
	}
	f := cmd.Flags()
	f.StringVar(&r.URL, "url", "", "URL of the controller (TAKT_URL, also in --env-file; default "+cli.DefaultURL+")")
	f.StringVar(&r.CAFile, "ca-file", "", "PEM file of certificate authorities to trust for an https controller, instead of the system's (TAKT_CA_FILE, also in --env-file)")
	f.BoolVar(&r.JSON, "json", false, "results as JSON, one value per line")
	f.StringVar(&name, "name", "", "name of the worker, with which the name of its key begins (default: the host's)")
	f.StringVar(&file, "env-file", workerEnv, "file to write the key to")
	cmd.RunE = cli.Interruptible(func(ctx context.Context, cmd *cobra.Command, args []string) (err error) {
		if name == "" {
			if name, err = os.Hostname(); err != nil {
				return cli.AsUsage(err)
			}
		}
		text, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return cli.AsUsage(err)
		}
		vars := envFile(text)
		set := map[string]string{"TAKT_URL": r.URL, "TAKT_CA_FILE": r.CAFile}
		r.URL, r.CAFile, r.APIKey = cmp.Or(r.URL, vars.get("TAKT_URL")), cmp.Or(r.CAFile, vars.get("TAKT_CA_FILE")), args[0]
		if err := cli.WriteFile(file, text, 0o600); err != nil { // before the token is spent
			return cli.AsUsage(err)
		}
		s, made, err := enroll(ctx, &r, cmd, name)
		if err != nil {
			return err
		}
		set["TAKT_API_KEY"] = made.Key
		for _, variable := range []string{"TAKT_URL", "TAKT_CA_FILE", "TAKT_API_KEY"} {
			if set[variable] != "" {
				vars = vars.with(variable, set[variable])
			}
		}
		if err := cli.WriteFile(file, vars, 0o600); err != nil {
			return fmt.Errorf("key %s can't be kept, revoke it: %w", made.Name, err)
		}
		if os.Geteuid() != 0 {
			s.Note("takt: builds that run as this user can read %s: run this as root", file)
		}
		return s.Result(enrolledWorker{made.Name, file}, func(w io.Writer) { fmt.Fprintf(w, "key %s is in %s\n", made.Name, file) })
	})
	return cmd
}

// enroll gets a worker's key for the token that r has in place of the API key.
func enroll(ctx context.Context, r *cli.Remote, cmd *cobra.Command, name string) (s *cli.Session, made api.MadeKey, err error) {
	if s, err = r.Open(cmd); err == nil {
		defer s.Client.CloseIdle()
		made, err = client.Call(ctx, s.Client, api.EnrollWorker, api.EnrollIn{Name: name})
	}
	return s, made, err
}

// envFile is the content of a file of environment variables.
type envFile []byte

// line matches the line that sets a variable.
func (envFile) line(name string) *regexp.Regexp {
	return regexp.MustCompile(`(?m)^[ \t]*` + name + `[ \t]*=(.*)$`)
}

// get returns a variable's last value, "" if it has none.
func (e envFile) get(name string) string {
	all := e.line(name).FindAllSubmatch(e, -1)
	if len(all) == 0 {
		return ""
	}
	return strings.Trim(strings.TrimSpace(string(all[len(all)-1][1])), `"'`)
}

// with returns e with another value of a variable, which has no special characters.
func (e envFile) with(name, value string) envFile {
	var out envFile
	line, found := e.line(name), false
	for lines := bufio.NewScanner(bytes.NewReader(e)); lines.Scan(); {
		text := lines.Bytes()
		if line.Match(text) {
			if found {
				continue
			}
			text, found = []byte(name+"="+value), true
		}
		out = append(append(out, text...), '\n')
	}
	if !found {
		out = append(out, name+"="+value+"\n"...)
	}
	return out
}

// exposedKey says where builds that run as the worker's user can read a key of the worker, ""
// if they can't: a key that came from the environment of a service is not among it.
func exposedKey(r *cli.Remote, stateDir, key string) string {
	file := cmp.Or(r.APIKeyFile, r.Env.Get("TAKT_API_KEY_FILE"))
	if file != "" && (r.APIKeyFile != "" || r.Env.Get("TAKT_API_KEY") == "") {
		return file
	}
	kept := filepath.Join(stateDir, "key")
	if _, err := os.Stat(kept); err == nil {
		return kept
	}
	if os.Geteuid() == 0 { // then nothing is kept from builds; the worker warns of that
		return ""
	}
	for _, pid := range []int{os.Getppid(), 1} {
		about := fmt.Sprintf("/proc/%d/environ", pid)
		if vars, err := os.ReadFile(about); err == nil && key != "" && bytes.Contains(vars, []byte(key)) {
			return about
		}
	}
	return ""
}

// enrolled has a worker use its own key, which it first gets for token unless its state
// directory has one. With neither it uses the key of the settings.
func enrolled(r *cli.Remote, cmd *cobra.Command, token, name, dir string) error {
	file := filepath.Join(dir, "key")
	kept, err := os.ReadFile(file)
	if given, _ := r.Key(); err == nil && (token != "" || given == "") {
		r.APIKey = strings.TrimSpace(string(kept))
		return nil
	}
	if token == "" {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return cli.AsUsage(err)
	}
	if err := cli.WriteFile(file+".new", nil, 0o600); err != nil { // before the token is spent
		return cli.AsUsage(err)
	}
	defer os.Remove(file + ".new") // harmless if it stays
	r.APIKey = cmp.Or(token, r.APIKey)
	_, made, err := enroll(cmd.Context(), r, cmd, name)
	if err != nil {
		return err
	}
	r.APIKey = made.Key
	return cli.WriteFile(file, []byte(made.Key+"\n"), 0o600)
}

package operating

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"takt/cmd/internal/cli"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

// Debug returns takt debug.
func Debug(env cli.Environment) *cobra.Command {
	return cli.Group(&cobra.Command{Use: "debug", Short: "Debug a controller that misbehaves"}, newBundleCommand(env))
}

func newBundleCommand(env cli.Environment) *cobra.Command {
	var file string
	record := 10 * time.Second
	cmd := cli.Command(env, &cobra.Command{
		Use: "bundle", Short: "Collect the data for a bug report in one file",
		Long: `Collect the data for a bug report in one .tar.gz: the tree, metrics, settings
(secrets masked), recent log and supervision events, profiles, build information
and PostgreSQL's statistics. It has no keys, tokens or certificates, but the names of
workers and builds. What could not be collected is listed in errors.txt. Needs the
admin key in TAKT_ADMIN_KEY.`,
	}, func(ctx context.Context, s *cli.Session, _ []string) error {
		if record < time.Second || record > time.Minute {
			return cli.Usage("--record must be 1s to 60s")
		}
		b := bundle{name: "takt-" + time.Now().UTC().Format("20060102-150405")}
		if file == "" {
			file = b.name + ".tar.gz"
		}
		s.Note("takt: collecting; the processor is watched for %s", record)
		if err := b.collect(ctx, s.Client, record); err != nil {
			return err
		}
		if err := b.write(file); err != nil {
			return fmt.Errorf("writing the bundle: %w", err)
		}
		for _, fault := range b.faults {
			s.Note("takt: not in the bundle: %s", store.Lines(fault))
		}
		return s.Result(map[string]any{"file": file, "missing": b.faults}, func(w io.Writer) { fmt.Fprintln(w, file) })
	})
	cmd.Flags().StringVarP(&file, "output", "o", "", "file to write (default takt-TIME.tar.gz)")
	cli.DurationFlag(cmd.Flags(), &record, "record", record, "how long the processor is watched, 1s to 60s")
	return cmd
}

// bundle is the content of the file for a bug report.
type bundle struct {
	name   string // of the directory in it
	files  []bundled
	faults []string
}

type bundled struct{ name, content string }

// collect asks the controller for everything. It returns an error if nothing can be had,
// or if the key is refused.
func (b *bundle) collect(ctx context.Context, c *client.Client, record time.Duration) error {
	inside, err := client.Call(ctx, c, api.ShowDebug, api.None{})
	if cli.ExitCode(err) == cli.ExitRefused {
		return err
	}
	if b.add("debug", "", err) {
		b.addInside(inside)
	}
	tree, err := c.Tree(ctx, client.TreeOptions{All: true})
	b.addJSON("tree.json", tree, err)
	metrics, err := c.Metrics(ctx)
	b.add("metrics.txt", metrics, err)
	for _, p := range []struct {
		file string
		client.ProfileOptions
	}{
		{"goroutines.txt", client.ProfileOptions{Name: "goroutine", Text: 2}},
		{"heap.pprof", client.ProfileOptions{Name: "heap"}},
		{"cpu.pprof", client.ProfileOptions{Name: "profile", Record: record}},
	} {
		profile, err := c.Profile(ctx, p.ProfileOptions)
		b.add(p.file, profile, err)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if len(b.files) == 0 {
		return err
	}
	if len(b.faults) > 0 {
		b.add("errors.txt", strings.Join(b.faults, "\n")+"\n", nil)
	}
	return nil
}

// addInside splits the description of the process into files.
func (b *bundle) addInside(inside api.Debug) {
	b.addJSON("build.json", inside.Build, nil)
	b.addJSON("settings.json", inside.Settings, nil)
	b.add("log.jsonl", strings.Join(inside.Log, ""), nil)
	var events strings.Builder
	for _, e := range inside.Supervision {
		events.Write(e)
		events.WriteByte('\n')
	}
	b.add("supervision.jsonl", events.String(), nil)
	var err error
	if inside.DatabaseError != "" {
		err = errors.New(inside.DatabaseError)
	}
	b.addJSON("database.json", inside.Database, err)
}

// add adds a file, or a fault if err is set. It reports whether there was none.
func (b *bundle) add(name, content string, err error) bool {
	if err != nil {
		b.faults = append(b.faults, name+": "+cli.Message(err))
		return false
	}
	if content != "" {
		b.files = append(b.files, bundled{name, content})
	}
	return true
}

func (b *bundle) addJSON(name string, v any, err error) {
	if err == nil {
		var raw []byte
		if raw, err = json.MarshalIndent(v, "", "  "); err == nil {
			b.add(name, string(raw)+"\n", nil)
			return
		}
	}
	b.add(name, "", err)
}

// write writes the files as an archive that only its owner can read. It replaces no file
// and leaves nothing half written behind.
func (b *bundle) write(path string) (err error) {
	f, err := os.OpenFile(filepath.Clean(path), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			_ = os.Remove(f.Name()) // the first error is the one to show
		}
	}()
	zw := gzip.NewWriter(f)
	tw := tar.NewWriter(zw)
	for _, file := range b.files {
		head := tar.Header{Name: b.name + "/" + file.name, Mode: 0o600, Size: int64(len(file.content)), ModTime: time.Now()}
		if err := tw.WriteHeader(&head); err != nil {
			return err
		}
		if _, err := io.WriteString(tw, file.content); err != nil {
			return err
		}
	}
	return errors.Join(tw.Close(), zw.Close())
}

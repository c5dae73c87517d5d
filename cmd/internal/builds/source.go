package builds

import (
	"archive/zip"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/spf13/pflag"

	"takt/cmd/internal/cli"
	"takt/cmd/internal/pack"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

// sourceOptions are the flags that say what the source is.
type sourceOptions struct {
	dryRun, all, pointers  bool
	commit, branch, remote *string // nil if not given
}

func (o *sourceOptions) addFlags(f *pflag.FlagSet) {
	f.BoolVar(&o.dryRun, "dry-run", false, "list the files that would be packed, and send nothing")
	f.BoolVar(&o.all, "all", false, "pack everything except .git, also what .gitignore names")
	f.BoolVar(&o.pointers, "allow-lfs-pointers", false, "pack pointers of Git LFS where the files were not fetched")
	fact := func(to **string, name, usage string) {
		cli.TextFlag(f, to, name, "string", usage, func(s *string) string { return cli.Or(s, "") }, func(text string) (*string, error) {
			var checked store.Facts
			if text == "" {
				return &text, nil // says nothing
			}
			if err := checked.Set(name, text); err != nil {
				return nil, errors.New(strings.TrimPrefix(cli.Message(err), name+": "))
			}
			text = cmp.Or(checked.Commit, checked.Branch, checked.Remote)
			return &text, nil
		})
	}
	fact(&o.commit, "commit", "the commit of the source, instead of what git or the CI says")
	fact(&o.branch, "branch", "the branch of the source, likewise")
	fact(&o.remote, "remote", "the URL of the source's repository, likewise; credentials in it are not sent")
}

// facts returns where the source comes from: the flags win.
func (o *sourceOptions) facts(env cli.Environment, c *pack.Commit) store.Facts {
	f := pack.Facts(c, env.Get)
	if o.commit != nil && (*o.commit == "" || !strings.HasPrefix(f.Commit, *o.commit)) {
		f.Commit, f.Dirty = *o.commit, nil // what was changed since another one is not known
	}
	if o.branch != nil {
		f.Branch = *o.branch
	}
	if o.remote != nil {
		f.Remote = *o.remote
	}
	return f
}

// source is what a build is made of: an archive, or a directory that is packed into one.
type source struct {
	path    string
	options sourceOptions
	state   string     // directory of what this user has seen
	isDir   bool       // and no archive
	tree    *pack.Tree // of an archive, only its entries
	size    int64      // of the archive; of a directory after packing
	facts   store.Facts
	content client.Content
	remove  func()
}

// findSource looks at what is to be sent.
func findSource(ctx context.Context, env cli.Environment, o sourceOptions, path string) (*source, error) {
	s := &source{path: path, options: o, state: filepath.Join(cli.StateDir(env), "left-out"), remove: func() {}}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, cli.AsUsage(err)
	case info.IsDir():
		s.isDir = true
		if s.tree, err = pack.List(ctx, pack.Options{Dir: path, All: o.all, LFSPointers: o.pointers}); err != nil {
			return nil, err
		}
	case !info.Mode().IsRegular():
		return nil, cli.Usage("%s is neither a directory nor a zip archive", path)
	default:
		s.size = info.Size()
		if s.tree, err = readZip(path); err != nil {
			return nil, err
		}
		switch {
		case s.size > api.MaxSource:
			return nil, pack.TooLarge(path, api.MaxSource, s.tree.Entries)
		case s.tree.Files() == 0:
			return nil, pack.ErrNoFile(path)
		}
	}
	s.facts = o.facts(env, s.tree.Commit)
	return s, nil
}

// readZip lists an archive. It refuses what a worker could not unpack anyway.
func readZip(path string) (*pack.Tree, error) {
	z, err := zip.OpenReader(path)
	switch {
	case errors.Is(err, zip.ErrFormat):
		return nil, cli.Usage("%s is no zip archive: SOURCE must be one, or a directory", path)
	case err != nil:
		return nil, cli.AsUsage(err)
	}
	defer z.Close()
	tree := &pack.Tree{}
	for _, f := range z.File {
		name, mode := strings.TrimSuffix(f.Name, "/"), f.Mode()
		if name != f.Name {
			mode |= os.ModeDir
		}
		tree.Entries = append(tree.Entries, pack.Entry{Name: name, Size: int64(f.UncompressedSize64), Mode: mode})
	}
	return tree, nil
}

// open packs a directory, and opens the archive.
func (s *source) open(ctx context.Context, out *cli.Session) (err error) {
	archive := s.path
	if s.isDir {
		bar := cli.NewBar(out.Err, "packing "+s.path, out.JSON)
		archive, err = s.tree.WriteFile(ctx, api.MaxSource, bar.Progress())
		bar.Done()
		if err != nil {
			return err
		}
		s.remove = func() { _ = os.Remove(archive) }
	}
	if s.content, err = client.File(archive); err != nil {
		s.remove()
		return cli.AsUsage(err)
	}
	s.size = s.content.Size
	return nil
}

// warn says what people may not expect of the source.
func (s *source) warn(out *cli.Session) {
	t := s.tree
	if names := t.Secrets(); len(names) > 0 {
		out.Note("likely secrets are packed, and everybody who may read the build can read them: %s", pack.Some(names))
	}
	if names := t.Collisions(); len(names) > 0 {
		out.Note("a worker whose disk does not tell upper from lower case, as on most Macs, can't unpack both of %s", pack.Some(names))
	}
	if t.Missing > 0 {
		out.Note("%s outside of the sparse checkout are not packed", pack.CountText(t.Missing))
	}
	if f := s.facts; f.Dirty != nil && *f.Dirty {
		out.Note("dirty: files are not as in commit %.12s", f.Commit)
	}
}

// leftOut shows what takt 0.1.0 would have packed too.
func leftOut(w io.Writer, t *pack.Tree) {
	all, total := t.LeftOut()
	if len(all) == 0 {
		return
	}
	fmt.Fprintf(w, "left out, as .gitignore or %s says: %s, %s\n", pack.IgnoreFile, pack.CountText(total.Files), humanize.IBytes(uint64(total.Bytes)))
	const most = 20
	for _, one := range all[:min(len(all), most)] {
		fmt.Fprintln(w, store.Line(one.String()))
	}
	if more := len(all) - most; more > 0 {
		fmt.Fprintf(w, "  and %d more\n", more)
	}
}

// noteLeftOut shows once for each directory what --all would pack too.
func (s *source) noteLeftOut(out *cli.Session) {
	if !s.isDir || s.options.all || out.JSON {
		return
	}
	path, err := filepath.Abs(s.path)
	if err != nil {
		return
	}
	name := sha256.Sum256([]byte(path))
	file := filepath.Join(s.state, hex.EncodeToString(name[:16]))
	if _, err := os.Stat(file); err == nil {
		return
	}
	var text strings.Builder
	leftOut(&text, s.tree)
	if text.Len() > 0 {
		out.Note("%stakt 0.1.0 packed these, and --all does. This list is shown once; --dry-run shows it again", &text)
	}
	if os.MkdirAll(s.state, 0o700) == nil {
		_ = os.WriteFile(file, []byte(path+"\n"), 0o600) // otherwise they are shown again
	}
}

// dryRun is what --dry-run shows.
type dryRun struct {
	Files   []pack.Weight `json:"files"`
	Count   int           `json:"count"`
	Bytes   int64         `json:"bytes"`
	Archive int64         `json:"archive_bytes"`
	LeftOut []pack.Weight `json:"left_out"`
	Secrets []string      `json:"likely_secrets"`
	store.Facts
}

// show lists the source. It packs it, to find what would stop a submit.
func (s *source) show(ctx context.Context, out *cli.Session) error {
	t := s.tree
	if s.isDir {
		bar := cli.NewBar(out.Err, "packing "+s.path, out.JSON)
		counted := counter{}
		err := t.WriteLimited(ctx, &counted, api.MaxSource, bar.Progress())
		bar.Done()
		if err != nil {
			return err
		}
		s.size = counted.n
	}
	r := dryRun{Files: []pack.Weight{}, Count: t.Files(), Bytes: t.Bytes(), Archive: s.size, LeftOut: []pack.Weight{}, Secrets: []string{}, Facts: s.facts}
	for _, e := range t.Entries {
		if !e.Mode.IsDir() {
			r.Files = append(r.Files, pack.Weight{Name: e.Name, Files: 1, Bytes: e.Size})
		}
	}
	if s.isDir && !s.options.all {
		left, _ := t.LeftOut()
		r.LeftOut = append(r.LeftOut, left...)
	}
	r.Secrets = append(r.Secrets, t.Secrets()...)
	err := out.Result(r, func(w io.Writer) {
		for _, f := range r.Files {
			fmt.Fprintf(w, "%9s  %s\n", humanize.IBytes(uint64(f.Bytes)), store.Line(pack.Quote(f.Name)))
		}
	})
	if err != nil || out.JSON {
		return err
	}
	if s.isDir && !s.options.all {
		leftOut(out.Err, t)
	}
	out.Note("%s, %s of source; nothing was sent", pack.CountText(r.Count), humanize.IBytes(uint64(s.size)))
	return nil
}

// counter counts what is written to it.
type counter struct{ n int64 }

func (c *counter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return len(p), nil
}

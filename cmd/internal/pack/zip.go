package pack

import (
	"archive/zip"
	"bytes"
	"compress/flate"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/dustin/go-humanize"

	"takt/cmd/internal/cli"
	"takt/http/client"
)

// packedAt returns the time of every entry. It is the earliest time that zip can store.
func packedAt() time.Time { return time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC) }

// Write writes the archive. The same tree gives the same bytes: entries have a fixed order, no times, and of
// their modes only what git keeps. Links stay links. seen, which may be nil, gets how many bytes of the
// files have been read, of how many.
func (t *Tree) Write(ctx context.Context, w io.Writer, seen client.Progress) error {
	root, err := os.OpenRoot(t.root)
	if err != nil {
		return err
	}
	defer root.Close()
	p := packer{ctx: ctx, root: root, zip: zip.NewWriter(w), seen: seen, total: t.Bytes(), buffer: make([]byte, 64<<10)}
	deflate, err := flate.NewWriter(io.Discard, flate.BestSpeed)
	if err != nil {
		return err
	}
	p.zip.RegisterCompressor(zip.Deflate, func(out io.Writer) (io.WriteCloser, error) {
		deflate.Reset(out) // each entry is closed before the next begins
		return deflate, nil
	})
	for _, e := range t.Entries {
		if err := p.add(e); err != nil {
			return err
		}
	}
	if len(p.pointers) > 0 && !t.options.All && !t.options.LFSPointers {
		return cli.Usage("pointers of Git LFS are there instead of files: %s. git lfs pull fetches the files; --allow-lfs-pointers packs the pointers, %s leaves them out",
			Some(p.pointers), IgnoreFile)
	}
	return p.zip.Close()
}

// WriteFile writes the archive into a new temporary file of limited size. The caller removes it.
func (t *Tree) WriteFile(ctx context.Context, most int64, seen client.Progress) (name string, err error) {
	f, err := os.CreateTemp("", "takt-source-*.zip")
	if err != nil {
		return "", err
	}
	err = errors.Join(t.WriteLimited(ctx, f, most, seen), f.Close())
	if err != nil {
		_ = os.Remove(f.Name())
		return "", err
	}
	return f.Name(), nil
}

// WriteLimited writes an archive of limited size.
func (t *Tree) WriteLimited(ctx context.Context, w io.Writer, most int64, seen client.Progress) error {
	err := t.Write(ctx, &limited{to: w, left: most}, seen)
	if errors.Is(err, errTooLarge) {
		return TooLarge(t.options.Dir, most, t.Entries)
	}
	return err
}

var errTooLarge = errors.New("the archive is too large")

// limited takes so many bytes and no more.
type limited struct {
	to   io.Writer
	left int64
}

func (l *limited) Write(p []byte) (int, error) {
	if l.left -= int64(len(p)); l.left < 0 {
		return 0, errTooLarge
	}
	return l.to.Write(p)
}

// TooLarge returns the error of a source above its maximum size.
func TooLarge(source string, most int64, entries []Entry) error {
	var text strings.Builder
	fmt.Fprintf(&text, "%s is more than the %s that a source may have. Leave out what the build does not need, with .gitignore or %s. The heaviest:",
		source, humanize.IBytes(uint64(most)), IgnoreFile)
	for _, w := range heaviest(entries, shown) {
		text.WriteString("\n" + w.String())
	}
	return cli.Usage("%s", text.String())
}

// String is one line of a list.
func (w Weight) String() string {
	return fmt.Sprintf("  %9s  %s  %s", humanize.IBytes(uint64(w.Bytes)), CountText(w.Files), Quote(w.Name))
}

// CountText says how many files there are.
func CountText(n int) string {
	if n == 1 {
		return "1 file"
	}
	return humanize.Comma(int64(n)) + " files"
}

// packer writes one archive.
type packer struct {
	ctx         context.Context // one archive's
	root        *os.Root
	zip         *zip.Writer
	seen        client.Progress
	read, total int64
	buffer      []byte
	pointers    []string
}

func (p *packer) add(e Entry) error {
	header := &zip.FileHeader{Name: e.Name, Method: zip.Deflate, Modified: packedAt()}
	switch {
	case p.ctx.Err() != nil:
		return context.Cause(p.ctx)
	case e.Mode.IsDir():
		header.Name += "/"
		header.Method = zip.Store
		header.SetMode(fs.ModeDir | 0o755)
		_, err := p.zip.CreateHeader(header)
		return err
	case e.Mode&fs.ModeSymlink != 0:
		target, err := p.root.Readlink(e.Name)
		if err != nil {
			return changed(e.Name, err)
		}
		if leaves(e.Name, target) {
			return cli.Usage("%s: no worker unpacks a link to %s, which leaves the source; leave it out with %s", Quote(e.Name), Quote(target), IgnoreFile)
		}
		header.SetMode(fs.ModeSymlink | 0o777)
		out, err := p.zip.CreateHeader(header)
		if err != nil {
			return err
		}
		_, err = io.WriteString(out, target)
		return err
	}
	header.SetMode(0o644)
	if e.Mode&0o111 != 0 {
		header.SetMode(0o755)
	}
	return p.file(header, e.Name)
}

// changed returns an error for a file that is not as it was when it was listed.
func changed(name string, err error) error {
	// It has no number if a link leads out of the source.
	if no, ok := errors.AsType[syscall.Errno](err); ok && !isGone(err) && no != syscall.ELOOP && no != syscall.EINVAL {
		return err
	}
	return fmt.Errorf("%s changed while it was packed. Submit again when nothing writes to it, or leave it out with %s", Quote(name), IgnoreFile)
}

func (p *packer) file(header *zip.FileHeader, name string) error {
	// What has become a pipe meanwhile is not waited for, what has become a link is not packed, and one
	// of the directories above that has become a link leads nowhere outside of the source.
	f, err := p.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return changed(name, err)
	}
	defer f.Close()
	before, err := f.Stat()
	if err != nil {
		return err
	}
	if is, err := p.root.Lstat(name); err != nil || !before.Mode().IsRegular() || !os.SameFile(before, is) {
		return changed(name, nil)
	}
	out, err := p.zip.CreateHeader(header)
	if err != nil {
		return err
	}
	size := int64(0)
	for {
		n, err := f.Read(p.buffer)
		if n > 0 {
			if size == 0 && before.Size() < maxPointer && isPointer(p.buffer[:n]) {
				p.pointers = append(p.pointers, name)
			}
			size += int64(n)
			if _, err := out.Write(p.buffer[:n]); err != nil {
				return err
			}
			if p.read += int64(n); p.seen != nil {
				p.seen(p.read, p.total)
			}
		}
		switch {
		case p.ctx.Err() != nil:
			return context.Cause(p.ctx)
		case errors.Is(err, io.EOF):
			after, err := f.Stat()
			if err != nil {
				return err
			}
			if size != before.Size() || !after.ModTime().Equal(before.ModTime()) {
				return changed(name, nil)
			}
			return nil
		case err != nil:
			return err
		case size > before.Size():
			return changed(name, nil)
		}
	}
}

// maxPointer is above the size of any pointer of Git LFS, in bytes.
const maxPointer = 1024

// isPointer reports whether a file is a pointer of Git LFS.
func isPointer(content []byte) bool {
	return bytes.HasPrefix(content, []byte("version https://git-lfs.github.com/spec/v1\n")) && bytes.Contains(content, []byte("\noid "))
}

// maxLink is the longest target of a link that a worker takes, in bytes.
const maxLink = 4096

// leaves reports whether no worker would make the link called name, because its target may be outside of the
// source: ".." may stand only at the beginning, where the directories are real ones.
func leaves(name, target string) bool {
	if target == "" || len(target) > maxLink || target[0] == '/' || strings.ContainsAny(target, "\\\x00") {
		return true
	}
	parts := strings.Split(target, "/")
	for depth := strings.Count(name, "/"); depth > 0 && len(parts) > 0 && parts[0] == ".."; depth-- {
		parts = parts[1:]
	}
	return slices.Contains(parts, "..")
}

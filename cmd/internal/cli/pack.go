package cli

import (
	"archive/zip"
	"compress/flate"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"takt/http/client"
)

// PackDir writes a directory as a zip archive: everything except .git, in a fixed order
// and without times, so that the same tree gives the same bytes. Links stay links. A link
// that points outside the directory is an error, because no worker would unpack it.
func PackDir(ctx context.Context, dir string, w io.Writer) error {
	z := zip.NewWriter(w)
	z.RegisterCompressor(zip.Deflate, func(out io.Writer) (io.WriteCloser, error) {
		return flate.NewWriter(out, flate.BestSpeed)
	})
	err := filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case file == dir:
			return nil
		case d.Name() == ".git":
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		name, err := filepath.Rel(dir, file)
		if err != nil {
			return err
		}
		return pack(z, file, filepath.ToSlash(name), d)
	})
	if err != nil {
		return err
	}
	return z.Close()
}

// packed returns the time of every entry. It is the earliest time that zip can store.
func packed() time.Time { return time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC) }

func pack(z *zip.Writer, file, name string, d fs.DirEntry) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	header := &zip.FileHeader{Name: name, Method: zip.Deflate, Modified: packed()}
	header.SetMode(info.Mode())
	switch {
	case info.IsDir():
		header.Name += "/"
		header.Method = zip.Store
		_, err = z.CreateHeader(header)
		return err
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(file)
		if err != nil {
			return err
		}
		target = filepath.ToSlash(target)
		if leaves(name, target) {
			return fmt.Errorf("%s: link to %s leaves the directory", name, target)
		}
		out, err := z.CreateHeader(header)
		if err != nil {
			return err
		}
		_, err = io.WriteString(out, target)
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s: neither file, directory nor link", name)
	}
	return packFile(z, header, file)
}

func packFile(z *zip.Writer, header *zip.FileHeader, file string) error {
	in, err := os.Open(file)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := z.CreateHeader(header)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return err
}

// leaves reports whether the link called name points outside the directory.
func leaves(name, target string) bool {
	if target == "" || path.IsAbs(target) || strings.Contains(target, "\\") {
		return true
	}
	to := path.Join(path.Dir(name), target)
	return to == ".." || strings.HasPrefix(to, "../")
}

// PackToFile packs a directory into a new temporary file of limited size. It calls
// seen with the number of bytes written so far. The caller removes the file.
func PackToFile(ctx context.Context, dir string, most int64, seen client.Progress) (name string, err error) {
	f, err := os.CreateTemp("", "takt-source-*.zip")
	if err != nil {
		return "", err
	}
	err = errors.Join(PackDir(ctx, dir, &archive{ctx: ctx, file: f, most: most, seen: seen}), f.Close())
	if err != nil {
		_ = os.Remove(f.Name())
		return "", fmt.Errorf("packing %s: %w", dir, err)
	}
	return f.Name(), nil
}

// archive is a file that is written until ctx ends or it reaches its maximum size.
type archive struct {
	ctx        context.Context // io.Writer takes none
	file       io.Writer
	size, most int64
	seen       client.Progress
}

func (a *archive) Write(p []byte) (int, error) {
	if a.ctx.Err() != nil {
		return 0, context.Cause(a.ctx)
	}
	if a.size += int64(len(p)); a.size > a.most {
		return 0, TooLarge(a.most)
	}
	if a.seen != nil {
		a.seen(a.size, 0)
	}
	return a.file.Write(p)
}

// TooLarge returns the error of a source above its maximum size.
func TooLarge(most int64) error {
	return Usage("it has more than the %s that a source may have: leave out what the build does not need", humanize.IBytes(uint64(most)))
}

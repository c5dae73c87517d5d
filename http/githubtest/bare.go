package githubtest

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
)

// makeBare makes an empty bare repository, without the cost of a git process.
func makeBare(dir, branch string) error {
	for _, d := range []string{"objects/info", "objects/pack", "refs/heads", "refs/tags"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	if err := setHead(dir, branch); err != nil {
		return err
	}
	const config = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = true\n[http]\n\treceivepack = true\n"
	return os.WriteFile(filepath.Join(dir, "config"), []byte(config), 0o600)
}

func setHead(dir, branch string) error {
	return os.WriteFile(filepath.Join(dir, "HEAD"), []byte("ref: refs/heads/"+branch+"\n"), 0o600)
}

// copyContent copies objects and refs of a bare repository.
func copyContent(dir, template string) error {
	for _, part := range []string{"objects", "refs"} {
		from := filepath.Join(template, part)
		err := filepath.WalkDir(from, func(path string, d os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(template, path)
			if err != nil {
				return err
			}
			if d.IsDir() {
				return os.MkdirAll(filepath.Join(dir, rel), 0o755)
			}
			return copyFile(filepath.Join(dir, rel), path)
		})
		if err != nil {
			return fmt.Errorf("copying a repository: %w", err)
		}
	}
	if _, err := os.Stat(filepath.Join(template, "packed-refs")); err == nil {
		return copyFile(filepath.Join(dir, "packed-refs"), filepath.Join(template, "packed-refs"))
	}
	return nil
}

// copyFile links objects, which never change, and copies everything else.
func copyFile(to, from string) error {
	if filepath.Base(filepath.Dir(filepath.Dir(from))) == "objects" && os.Link(from, to) == nil {
		return nil
	}
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o644)
}

// spool reads the body of r into a file, so that its length is known.
func spool(r *http.Request, dir string) (io.Closer, error) {
	if r.ContentLength >= 0 {
		return r.Body, nil
	}
	f, err := os.CreateTemp(dir, "body-")
	if err != nil {
		return nil, err
	}
	_ = os.Remove(f.Name()) // open is enough
	n, err := io.Copy(f, r.Body)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	r.Body, r.ContentLength, r.TransferEncoding = f, n, nil
	return f, nil
}

package main

import (
	"archive/zip"
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// orderFile is the file of the sample that says which order it was built for.
const orderFile = "order.txt"

// pack returns the zip of the program in dir with orderFile replaced by order,
// so that an artifact that was mixed up with another one shows.
func pack(dir, order string) ([]byte, error) {
	var out bytes.Buffer
	zw := zip.NewWriter(&out)
	root := os.DirFS(dir)
	err := fs.WalkDir(root, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if strings.HasPrefix(path, ".") {
			return nil
		}
		data, err := fs.ReadFile(root, path)
		if err != nil {
			return err
		}
		if path == orderFile {
			data = []byte(order + "\n")
		}
		w, err := zw.Create(path)
		if err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("packing the sample program: %w", err)
	}
	if err := zw.Close(); err != nil {
		return nil, fmt.Errorf("packing the sample program: %w", err)
	}
	return out.Bytes(), nil
}

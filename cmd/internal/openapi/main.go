// Package main writes http/openapi.yaml: the OpenAPI document of the endpoints that
// takt/http/api declares. What is not in their types is in frame.yaml: the text before the
// paths, headers, the replies to errors, and the schemas that no Go type has.
//
// # State
//
// None: the document follows from the code, and its texts are the comments in it.
//
// # Failure
//
// A declaration that can't be described is an error, and nothing is written.
//
// # Concurrency
//
// None.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: openapi DIR, the root of the repository")
		os.Exit(2)
	}
	root := os.Args[1]
	document, err := Document(root)
	if err == nil {
		err = os.WriteFile(filepath.Join(root, "http", "openapi.yaml"), document, 0o644) //nolint:gosec // everybody may read it
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "openapi:", err)
		os.Exit(1)
	}
}

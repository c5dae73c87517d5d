package command_test

import (
	"testing"

	"takt/cmd/internal/takttest"
)

func TestMain(m *testing.M) { takttest.Main(m) }

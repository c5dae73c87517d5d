package operating

import (
	"testing"

	"takt/cmd/internal/takttest"
)

func TestMain(m *testing.M) { takttest.Main(m, stopShared) }

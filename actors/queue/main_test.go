package queue

import (
	"testing"

	"takt/store/storetest"
)

func TestMain(m *testing.M) { storetest.Main(m) }

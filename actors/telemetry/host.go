package telemetry

import (
	"strings"

	"github.com/prometheus/procfs"
	"github.com/prometheus/procfs/blockdevice"

	"takt/store/metrics"
)

// sector is the unit of Linux's disk statistics, whatever the disk's own is.
const sector = 512

// MeasureHost shows the machine that takt runs on. What can't be read, as on other
// systems than Linux, is left out. disk returns the free bytes and the size of the disk of
// builds' files; it may be nil.
func MeasureHost(show metrics.Show, disk func() (free, size int64, err error)) {
	if fs, err := procfs.NewDefaultFS(); err == nil {
		if s, err := fs.Stat(); err == nil {
			c := s.CPUTotal
			for mode, seconds := range map[string]float64{
				"user": c.User + c.Nice, "system": c.System + c.IRQ + c.SoftIRQ, "iowait": c.Iowait, "steal": c.Steal, "idle": c.Idle,
			} {
				show("takt_host_cpu_seconds_total", seconds, mode)
			}
		}
		if m, err := fs.Meminfo(); err == nil && m.MemTotalBytes != nil && m.MemAvailableBytes != nil {
			show("takt_host_memory_bytes", float64(*m.MemTotalBytes))
			show("takt_host_memory_available_bytes", float64(*m.MemAvailableBytes))
		}
	}
	if read, written, ok := diskIO(); ok {
		show("takt_host_disk_read_bytes_total", read)
		show("takt_host_disk_written_bytes_total", written)
	}
	if disk == nil {
		return
	}
	if free, size, err := disk(); err == nil {
		show("takt_host_disk_free_bytes", float64(free))
		show("takt_host_disk_bytes", float64(size))
	}
}

// diskIO returns the bytes that whole disks have read and written. Partitions, and
// devices that are made of others, would count them again.
func diskIO() (read, written float64, ok bool) {
	fs, err := blockdevice.NewDefaultFS()
	if err != nil {
		return 0, 0, false
	}
	devices, err := fs.SysBlockDevices()
	if err != nil {
		return 0, 0, false
	}
	for _, name := range devices {
		if strings.HasPrefix(name, "loop") || strings.HasPrefix(name, "ram") || strings.HasPrefix(name, "zram") ||
			strings.HasPrefix(name, "dm-") || strings.HasPrefix(name, "md") {
			continue
		}
		if s, _, err := fs.SysBlockDeviceStat(name); err == nil {
			read, written, ok = read+float64(s.ReadSectors*sector), written+float64(s.WriteSectors*sector), true
		}
	}
	return read, written, ok
}

// franz-go as a consumer: records counted as PollRecords returns them, CRCs checked.
//
// Each topic is read by a client of its own: ConsumePartitions without a group, PollRecords, and pools for decompressed
// batches and for records, which Record.Recycle gives back: the client's own means against garbage.
//
// A line on standard input, "TOPIC PARTITIONS RECORDS sums" or "TOPIC PARTITIONS RECORDS count", is one read of a topic,
// from the creation of the client to the last record. It is answered by one line of JSON. With sums, offsets,
// timestamps, and lengths of keys and values are summed too.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	franz          = "github.com/twmb/franz-go"
	partitionBytes = 4 << 20
	responseBytes  = 32 << 20
	deadline       = 120 * time.Second
)

type order struct {
	topic      string
	partitions int32
	records    int64
	kind       string
}

type answer struct {
	Version string   `json:"version"`
	Seconds float64  `json:"seconds"`
	CPU     float64  `json:"cpu"`
	Faults  int64    `json:"faults"`
	Sums    [5]int64 `json:"sums"`
}

// slices is a pool for what the client decompresses and decodes into.
type slices struct{ bytes, records sync.Pool }

func (p *slices) GetDecompressBytes(compressed []byte, _ kgo.CompressionCodecType) []byte {
	if found, ok := p.bytes.Get().(*[]byte); ok {
		return *found
	}
	return make([]byte, 0, 4*len(compressed))
}

func (p *slices) PutDecompressBytes(buffer []byte) { p.bytes.Put(&buffer) }

func (p *slices) GetRecords(n int) []kgo.Record {
	if found, ok := p.records.Get().(*[]kgo.Record); ok && cap(*found) >= n {
		return (*found)[:0]
	}
	return make([]kgo.Record, 0, n)
}

func (p *slices) PutRecords(records []kgo.Record) { p.records.Put(&records) }

func read(server string, o order) (a answer, err error) {
	before, start := usage(), time.Now()
	offsets := map[int32]kgo.Offset{}
	for partition := range o.partitions {
		offsets[partition] = kgo.NewOffset().AtStart()
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(server),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{o.topic: offsets}),
		kgo.FetchMaxPartitionBytes(partitionBytes),
		kgo.FetchMaxBytes(responseBytes),
		kgo.WithPools(&slices{}),
	)
	if err != nil {
		return a, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	for a.Sums[0] < o.records {
		fetches := client.PollRecords(ctx, 100_000)
		if err := fetches.Err0(); err != nil {
			return a, err
		}
		for _, found := range fetches.Errors() {
			return a, found.Err
		}
		fetches.EachRecord(func(record *kgo.Record) {
			if o.kind == "sums" {
				a.Sums[1] += record.Offset
				a.Sums[2] += record.Timestamp.UnixMilli()
				a.Sums[3] += int64(len(record.Key))
				a.Sums[4] += int64(len(record.Value))
			}
			a.Sums[0]++
			record.Recycle()
		})
	}
	after := usage()
	a.Seconds = time.Since(start).Seconds()
	a.CPU = cpuSeconds(after) - cpuSeconds(before)
	a.Faults = after.Minflt - before.Minflt
	a.Version = version()
	return a, nil
}

func usage() (found syscall.Rusage) {
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &found); err != nil {
		panic(err)
	}
	return found
}

func cpuSeconds(used syscall.Rusage) float64 {
	return float64(used.Utime.Nano()+used.Stime.Nano()) / 1e9
}

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, module := range info.Deps {
			if module.Path == franz {
				return module.Version
			}
		}
	}
	return "?"
}

func run() error {
	if len(os.Args) != 2 {
		return errors.New("usage: PROGRAM HOST:PORT")
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var o order
		if _, err := fmt.Sscan(lines.Text(), &o.topic, &o.partitions, &o.records, &o.kind); err != nil {
			return err
		}
		a, err := read(os.Args[1], o)
		if err != nil {
			return err
		}
		if err := json.NewEncoder(os.Stdout).Encode(a); err != nil {
			return err
		}
	}
	return nil
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "franz-go: %v\n", err)
		os.Exit(1)
	}
}

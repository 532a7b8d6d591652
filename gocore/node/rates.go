package node

import (
	"fmt"
	"math"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"

	"fptps/gocore/cluster"
)

const (
	// payloadFraction is the TCP payload in an Ethernet frame of 1514 bytes.
	payloadFraction = 1448.0 / 1514
	// usableFraction is the used part of a link: at 102% a queue of 6 ms builds up in front of
	// it, at 99% none.
	usableFraction = 0.99
)

// payloadRate is the payload in bytes per second that a link of the given rate in bits per
// second should carry.
func payloadRate(bits uint64) float64 { return float64(bits) / 8 * payloadFraction * usableFraction }

// laneRate is the rate in bit/s that one lane can fill: its loops move about 2 GB/s each way.
const laneRate = 16e9

// maxLanes bounds the lanes: each is two threads.
const maxLanes = 8

// lanesOf is the number of lanes of every node in the cluster: enough for the fastest link. It is the same on all nodes.
func lanesOf(view cluster.View) int {
	return max(1, min(maxLanes, int(math.Ceil(float64(view.FastestLink)/laneRate))))
}

// linkRate is the rate of this node's link in bit/s, 0 if unknown.
func (c *Config) linkRate() uint64 {
	if c.LinkRate >= 0 {
		return uint64(c.LinkRate)
	}
	device, ok := interfaceOf(net.ParseIP(c.Host))
	if !ok || device.Flags&net.FlagLoopback != 0 {
		return 0
	}
	text, err := os.ReadFile("/sys/class/net/" + device.Name + "/speed")
	if err != nil {
		return 0
	}
	megabits, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || megabits <= 0 { // -1: unknown
		return 0
	}
	return uint64(megabits) * 1e6
}

// interfaceOf finds the network interface with an address.
func interfaceOf(ip net.IP) (net.Interface, bool) {
	devices, err := net.Interfaces()
	if err != nil || ip == nil {
		return net.Interface{}, false
	}
	for _, device := range devices {
		addresses, err := device.Addrs()
		if err != nil {
			continue
		}
		for _, address := range addresses {
			if network, ok := address.(*net.IPNet); ok && network.IP.Equal(ip) {
				return device, true
			}
		}
	}
	return net.Interface{}, false
}

var rateText = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?)(k|m|g)?(?:bit)?$`)

// bits parses a rate in the notation of tc.
func bits(field func(*Config) *int64) func(*Config, string) error {
	return func(c *Config, value string) error {
		parts := rateText.FindStringSubmatch(strings.ToLower(value))
		if parts == nil {
			return fmt.Errorf("a rate in bits per second is expected, such as 1gbit, 500mbit or 0")
		}
		number, err := strconv.ParseFloat(parts[1], 64)
		number *= map[string]float64{"": 1, "k": 1e3, "m": 1e6, "g": 1e9}[parts[2]]
		if err != nil || number > 1e13 || number > 0 && number < 1e4 {
			return fmt.Errorf("a rate of 10kbit to 10000gbit is expected, or 0")
		}
		*field(c) = int64(number)
		return nil
	}
}

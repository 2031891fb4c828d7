"""What a line is: events, records, sealing and decoding. No disk, no clock."""
